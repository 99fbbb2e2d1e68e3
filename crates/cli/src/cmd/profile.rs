//! `girih profile`: the time of each operator in prefill and decode, and its
//! bottleneck.

use girih::{Model, TowerPlan};
use girih_measure::{Amounts, MinimalWork, Profile, ProfileRow, profile, profile_image};
use serde_json::{Value, json};

use super::outcome::Outcome;
use crate::args::{DeviceArgs, ModelArgs};
use crate::error::{Error, Result};
use crate::limits::{Bottleneck, MachineLimits, limit_notes};
use crate::loading;
use crate::output::{counted, print_json};
use crate::pack_args::PackArgs;
use crate::progress::{Show, Unit};

/// The seed of random prompts.
const SEED: u64 = 42;

/// The length of the prompt if a call sets none and the context has room for it.
const DEFAULT_PROMPT: u32 = 512;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Length of the prompt [default: 512, or what the context leaves].
    #[arg(long, short = 'p', value_name = "N")]
    prompt_tokens: Option<u32>,
    /// Number of decode steps after the prompt.
    #[arg(long, short = 'n', value_name = "N", default_value = "32")]
    gen_tokens: u32,
    /// Tokens in the KV cache before the timed ones.
    #[arg(long, short = 'd', value_name = "N", default_value = "0")]
    depth: u32,
    /// Profile the image tower instead: one image of random pixels.
    #[arg(long, conflicts_with_all = ["prompt_tokens", "gen_tokens", "depth"])]
    image: bool,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    pack: PackArgs,
    /// Skip measuring this machine's limits.
    #[arg(long)]
    no_limits: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<Outcome> {
    let model = loading::open_packed(&args.model, args.pack)?;
    if model.files().facts.is_encoder() {
        let name = model.name();
        return Err(Error::call(format!("{name} is an encoder; profile runs models that generate text")));
    }
    let show = args.device.show.show();
    let threads = args.device.thread_count();
    let is_simulated = args.device.backend.choice()?.info().is_simulated;
    let has_limits = !args.no_limits && !is_simulated;
    let limits = if has_limits { Some(MachineLimits::measure(threads, show)?) } else { None };
    let mut named = if args.image { of_image(args, &model)? } else { of_text(args, &model)? };
    if is_simulated {
        // The steps took as long as the simulation needed, which says nothing about the device.
        named.iter_mut().for_each(|(_, profile)| profile.wall_seconds = profile.node_seconds());
        show.note("times are simulated: those of the array, of the host and of transfers, one after another");
    }
    let limits = limits.map(|limits| {
        let weights = &model.files().weights;
        ProfileLimits { limits, model_bytes: weights.container().bytes() }
    });
    if args.json {
        let parts: serde_json::Map<String, Value> = named
            .iter()
            .map(|(name, profile)| ((*name).to_owned(), described(profile, limits.as_ref())))
            .collect();
        print_json(&json!({
            "model": args.model.model,
            "threads": threads,
            "depth": args.depth,
            "limits": limits.as_ref().map(|limits| limits.limits.json()),
            "profile": parts,
        }))?;
        return Ok(Outcome::Done);
    }
    print_profiles(&named, limits.as_ref(), show)?;
    Ok(Outcome::Done)
}

/// The profile of the image tower.
fn of_image(args: &Args, model: &Model) -> Result<Vec<(&'static str, Profile)>> {
    let plan = TowerPlan::new(model, &loading::options(&args.device)?)?;
    let files = model.tower_files()?;
    let (bar, watch) = loading::watch(args.device.show.show());
    let mut tower = plan.load(watch)?;
    bar.finish_and_clear();
    // A first run, not counted, touches all memory.
    profile_image(&mut tower, files, SEED)?;
    Ok(vec![("image", profile_image(&mut tower, files, SEED)?)])
}

/// The profiles of prefill and decode, without those that have no steps.
fn of_text(args: &Args, model: &Model) -> Result<Vec<(&'static str, Profile)>> {
    let (amounts, context) = amounts(args, model.max_context())?;
    let mut device = args.device.clone();
    device.context.get_or_insert(context);
    let (bar, watch) = loading::watch(device.show.show());
    let mut runner = loading::plan(model, &device, 1)?.load_runner(watch)?;
    bar.finish_and_clear();
    // A first run, not counted, touches all memory.
    let warming = Amounts { depth: 0, prompt: amounts.prompt.min(16), generated: amounts.generated.min(1) };
    profile(&mut *runner, warming, SEED, &mut |_| {})?;
    let bar = device.show.show().bar("profiling", 0, Unit::Things("tokens"));
    let profiles = profile(&mut *runner, amounts, SEED, &mut bar.watcher())?;
    bar.finish_and_clear();
    let named = ["prefill", "decode"].into_iter().zip(profiles);
    Ok(named.filter(|(_, profile)| profile.steps > 0).collect())
}

/// The amounts to run, and the context that they need.
fn amounts(args: &Args, max_context: u32) -> Result<(Amounts, u32)> {
    let context = args.device.context.unwrap_or(max_context);
    let room = context.saturating_sub(args.depth).saturating_sub(args.gen_tokens);
    let prompt = args.prompt_tokens.unwrap_or_else(|| room.min(DEFAULT_PROMPT));
    let amounts = Amounts { depth: args.depth, prompt, generated: args.gen_tokens };
    let total = u64::from(amounts.depth) + u64::from(amounts.prompt) + u64::from(amounts.generated);
    let context = u32::try_from(total).ok().filter(|&total| total > 0);
    let context = context.ok_or_else(|| Error::call(format!("{total} tokens cannot be run")))?;
    Ok((amounts, context))
}

/// Prints a table for each profile, and the notes on their limits.
fn print_profiles(named: &[(&str, Profile)], limits: Option<&ProfileLimits>, show: Show) -> Result<()> {
    let mut bottlenecks = Vec::new();
    for (name, profile) in named {
        print(name, profile, limits)?;
        bottlenecks.extend(profile.rows.iter().filter_map(|row| bottleneck(row, limits)));
    }
    limit_notes(&bottlenecks).iter().for_each(|note| show.note(note));
    Ok(())
}

/// The limits of this machine for a model.
struct ProfileLimits {
    limits: MachineLimits,
    model_bytes: u64,
}

/// Prints a table, the slowest rows first.
fn print(name: &str, profile: &Profile, limits: Option<&ProfileLimits>) -> Result<()> {
    let Profile { rows, steps, tokens, wall_seconds, .. } = profile;
    let rate = *tokens as f64 / wall_seconds;
    print_line!(
        "{name}: {} in {}, {:.1} ms, {rate:.1} tokens/s",
        counted(*tokens as usize, "token"),
        counted(*steps as usize, "step"),
        wall_seconds * 1e3
    )?;
    let mut sorted: Vec<&ProfileRow> = rows.iter().collect();
    sorted.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let width = rows.iter().map(|row| row.nodes.len()).max().unwrap_or(0).max(5);
    let variants = rows.iter().map(|row| row.variant.len()).max().unwrap_or(0).max(7);
    print_line!(
        "{:<width$} {:<8} {:<variants$} {:>6} {:>10} {:>6} {:>8} {:>9}  limit",
        "nodes",
        "op",
        "variant",
        "count",
        "ms",
        "%",
        "GB/s",
        "GFLOPS"
    )?;
    for row in sorted {
        let ProfileRow { nodes, op, variant, count, seconds, bytes, operations } = row;
        print_line!(
            "{nodes:<width$} {op:<8} {variant:<variants$} {count:>6} {:>10.3} {:>6.2} {:>8} {:>9}  {}",
            seconds * 1e3,
            100.0 * seconds / wall_seconds,
            per_second(*bytes, *seconds),
            per_second(*operations, *seconds),
            limit(row, limits),
        )?;
    }
    let sum = profile.node_seconds();
    print_line!(
        "all nodes: {:.3} ms, {:.2} % of the steps' {:.3} ms",
        sum * 1e3,
        100.0 * sum / wall_seconds,
        wall_seconds * 1e3
    )
}

/// Formats a rate in billions per second, or `–` if the amount is 0.
fn per_second(amount: u64, seconds: f64) -> String {
    if amount == 0 { "–".to_owned() } else { format!("{:.2}", amount as f64 / seconds.max(1e-12) / 1e9) }
}

/// Formats the bottleneck of a row, or `–` if it has no operations.
fn limit(row: &ProfileRow, limits: Option<&ProfileLimits>) -> String {
    bottleneck(row, limits).map_or_else(|| "–".to_owned(), Bottleneck::text)
}

/// The bottleneck of a row that has operations.
fn bottleneck(row: &ProfileRow, limits: Option<&ProfileLimits>) -> Option<Bottleneck> {
    let work =
        MinimalWork { weight_bytes: row.bytes as f64, state_bytes: 0.0, operations: row.operations as f64 };
    let limits = limits.filter(|_| row.operations > 0)?;
    Some(limits.limits.bottleneck(&work, row.seconds, activations(row), limits.model_bytes))
}

/// The numbers that a row's instructions multiply, by its variant.
fn activations(row: &ProfileRow) -> &'static str {
    ["int8", "bf16-dot"].into_iter().find(|numbers| row.variant.contains(numbers)).unwrap_or("f32")
}

fn described(profile: &Profile, limits: Option<&ProfileLimits>) -> Value {
    let rows = profile.rows.iter().map(|row| {
        let bottleneck = bottleneck(row, limits);
        let mut described = json!(row);
        described["limit"] = json!(bottleneck.map(|bottleneck| bottleneck.limit));
        described["fraction_of_limit"] = json!(bottleneck.and_then(|bottleneck| bottleneck.share.fraction()));
        described
    });
    json!({
        "steps": profile.steps,
        "tokens": profile.tokens,
        "wall_seconds": profile.wall_seconds,
        "node_seconds": profile.node_seconds(),
        "rows": rows.collect::<Vec<_>>(),
    })
}
