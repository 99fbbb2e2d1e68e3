//! `girih quantize`: converts a model to another container or storage format.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Instant;

use girih::AdapterSource;
use girih_convert::{
    ConvertOptions, ConvertTarget, Dedup, IebinOptions, IebsOptions, Q4Map, Recipe, WrittenIebs,
    WrittenTensor,
};
use girih_model::ModelFiles;
use girih_words::TextLimits;
use serde_json::{Value, json};

use super::outcome::Outcome;
use crate::args::{ArchArgs, ModelArgs, ShowArgs};
use crate::error::{Error, Result};
use crate::input::{DESCRIPTION_BYTES, text_file};
use crate::loading;
use crate::output::{bytes, counted, print_json, print_note};
use crate::progress::{Show, Unit};

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Output: a .gguf file, or a folder for q4nx, safetensors and iebin; it must not exist yet.
    out: PathBuf,
    /// Type of the output: f32, f16, bf16, q8_0, q4_0, q4_k_m, …, q4nx, safetensors, iebin, or iebs for one matrix.
    #[arg(long = "type", value_name = "TYPE", value_parser = target)]
    target: QuantizeTarget,
    /// Adapter (LoRA) to put into the weights: a folder of PEFT or a .gguf file.
    #[arg(long, value_name = "PATH")]
    adapter: Option<PathBuf>,
    /// Storage formats of individual tensors, as TOML.
    #[arg(long, value_name = "FILE")]
    recipe: Option<PathBuf>,
    /// Matrices to store as integers of four bits in a folder of IEBIN, as JSON.
    #[arg(long, value_name = "FILE")]
    q4_map: Option<PathBuf>,
    /// Widen all other tensors of a folder of IEBIN to single precision, for programs that read only this.
    #[arg(long)]
    iebin_f32: bool,
    /// Store near-equal tensors of a folder of IEBIN as differences: overlay.
    #[arg(long, value_name = "KIND", value_parser = dedup)]
    dedup: Option<Dedup>,
    /// Rows of the matrix for type iebs, if MODEL is a file of f32, row by row.
    #[arg(long, value_name = "N")]
    rows: Option<usize>,
    /// Rows and columns of a block for type iebs [default: 32x32].
    #[arg(long, value_name = "RxC")]
    block: Option<String>,
    /// Model name in the GGUF file [default: the name of its folder or file].
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Number of threads (does not affect results) [default: the cores this process may use].
    #[arg(long, short = 't', value_name = "N")]
    threads: Option<NonZeroUsize>,
    #[command(flatten)]
    show: ShowArgs,
    /// Print JSON, with a row per tensor; without it, -v prints the rows.
    #[arg(long)]
    json: bool,
}

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QuantizeTarget {
    Model(ConvertTarget),
    /// One matrix, by blocks.
    Iebs,
}

fn target(text: &str) -> std::result::Result<QuantizeTarget, String> {
    match text.eq_ignore_ascii_case("iebs") {
        true => Ok(QuantizeTarget::Iebs),
        false => text
            .parse()
            .map(QuantizeTarget::Model)
            .map_err(|error: girih_tensor::Error| format!("{error}, iebs")),
    }
}

fn dedup(text: &str) -> std::result::Result<Dedup, String> {
    text.parse().map_err(|error: girih_tensor::Error| error.to_string())
}

pub fn run(args: &Args) -> Result<Outcome> {
    let QuantizeTarget::Model(target) = args.target else { return matrix(args) };
    if args.rows.is_some() || args.block.is_some() {
        return Err(Error::call("--rows and --block are for --type iebs; omit them, or write iebs"));
    }
    let recipe = args.recipe.as_ref().map(|path| {
        let text = text_file(path, DESCRIPTION_BYTES)?;
        Recipe::parse(&text).map_err(|error| Error::call(error.of(path.display()).to_string()))
    });
    let iebin = iebin_options(args)?;
    let model = model(args)?;
    let default = NonZeroUsize::new(girih::default_threads()).unwrap_or(NonZeroUsize::MIN);
    let options = ConvertOptions {
        target,
        recipe: recipe.transpose()?,
        iebin,
        name: args.name.clone(),
        threads: args.threads.unwrap_or(default),
        limits: TextLimits::DEFAULT,
    };
    let show = args.show.show();
    let begun = Instant::now();
    let bar = show.bar("writing", 0, Unit::Things("weights"));
    let report = girih_convert::convert(&model, &args.out, &options, &mut |progress| {
        bar.set(progress.done, progress.total);
    })?;
    bar.finish_and_clear();
    let seconds = begun.elapsed().as_secs_f64();
    report.warnings.iter().for_each(|warning| print_note(format_args!("warning: {warning}")));
    let files = report.others.iter().chain([&report.weights]);
    let sizes = files.map(|file| Ok(std::fs::metadata(file)?.len())).collect::<Result<Vec<u64>>>()?;
    let size: u64 = sizes.iter().sum();
    let input = model.weights.container().bytes();
    if args.json {
        let rows: Vec<Value> = report.tensors.iter().map(row).collect();
        print_json(&json!({
            "out": args.out,
            "bytes": size,
            "input_bytes": input,
            "seconds": seconds,
            "tensors": rows,
            "warnings": report.warnings,
        }))?;
        return Ok(Outcome::Done);
    }
    match show {
        Show::Nothing => return Ok(Outcome::Done),
        Show::Notes => summary(&report.tensors)?,
        Show::Details => list(&report.tensors)?,
    }
    pruned(&report.tensors)?;
    let (out, ratio) = (args.out.display(), size as f64 / input.max(1) as f64);
    print_line!("wrote {out}: {}, {ratio:.2} of the input, in {seconds:.1} s", bytes(size))?;
    Ok(Outcome::Done)
}

/// Converts one matrix to a file of its blocks.
fn matrix(args: &Args) -> Result<Outcome> {
    let unused = [
        ("--adapter", args.adapter.is_some()),
        ("--recipe", args.recipe.is_some()),
        ("--name", args.name.is_some()),
        ("--threads", args.threads.is_some()),
    ];
    if let Some((option, _)) = unused.iter().find(|(_, is_set)| *is_set) {
        return Err(Error::call(format!("{option} is not for --type iebs; omit {option}")));
    }
    iebin_options(args)?;
    let block = args.block.as_deref().unwrap_or("32x32");
    let options = IebsOptions::new(args.rows, block).map_err(|error| Error::call(error.to_string()))?;
    let WrittenIebs { shape, blocks, density } =
        girih_convert::write_iebs(args.model.model.as_ref(), &args.out, &options)?;
    let size = std::fs::metadata(&args.out)?.len();
    if args.json {
        print_json(&json!({
            "out": args.out, "bytes": size, "shape": shape.extents(), "blocks": blocks, "density": density,
        }))?;
    } else if !matches!(args.show.show(), Show::Nothing) {
        let out = args.out.display();
        print_line!("wrote {out}: {shape}, {blocks} blocks, density {density:.3}, {}", bytes(size))?;
    }
    Ok(Outcome::Done)
}

/// What is particular to a folder of IEBIN.
fn iebin_options(args: &Args) -> Result<IebinOptions> {
    let of_iebin = [
        ("--q4-map", args.q4_map.is_some()),
        ("--iebin-f32", args.iebin_f32),
        ("--dedup", args.dedup.is_some()),
    ];
    if let Some((option, _)) = of_iebin
        .iter()
        .find(|(_, is_set)| *is_set && args.target != QuantizeTarget::Model(ConvertTarget::Iebin))
    {
        return Err(Error::call(format!("{option} is for --type iebin; omit {option}, or write iebin")));
    }
    let q4_map = args.q4_map.as_deref().map(Q4Map::read).transpose();
    let q4_map = q4_map.map_err(|error| Error::call(error.to_string()))?;
    Ok(IebinOptions { q4_map, single_precision: args.iebin_f32, dedup: args.dedup })
}

/// The model, with the adapter in its weights if there is one.
fn model(args: &Args) -> Result<ModelFiles> {
    let only = "a model that was just opened has no clones";
    let Some(path) = &args.adapter else {
        return Ok(loading::open_model(&args.model)?.into_files().expect(only));
    };
    if !matches!(args.target, QuantizeTarget::Model(ConvertTarget::Gguf(_))) {
        let sentence = "girih merges an adapter only when it writes a GGUF; merge the adapter first, then quantize the result";
        return Err(Error::call(sentence));
    }
    let source = AdapterSource { name: "adapter".to_owned(), path: path.clone() };
    let arch = ArchArgs { adapters: vec![source], ..args.model.arch.clone() };
    let mut files = loading::open(&args.model.model, &arch)?.into_files().expect(only);
    files.merge_adapter()?;
    Ok(files)
}

/// Prints each tensor.
fn list(tensors: &[WrittenTensor]) -> Result<()> {
    for tensor in tensors {
        let note = tensor.note.as_ref().map(|note| format!("  ({note})")).unwrap_or_default();
        let (name, shape) = (&tensor.name, tensor.shape.to_string());
        print_line!("{name:<40} {shape:<20} {} -> {}{note}", tensor.source, tensor.stored)?;
    }
    Ok(())
}

/// Prints the number of tensors of each format, and why others than the type's were chosen.
fn summary(tensors: &[WrittenTensor]) -> Result<()> {
    let mut kinds: Vec<(&WrittenTensor, usize, u64)> = Vec::new();
    for tensor in tensors {
        let size = tensor.stored.bytes(&tensor.shape)? as u64;
        let same = |kind: &&mut (&WrittenTensor, usize, u64)| {
            (kind.0.stored, &kind.0.note) == (tensor.stored, &tensor.note)
        };
        match kinds.iter_mut().find(same) {
            Some((_, count, bytes)) => (*count, *bytes) = (*count + 1, *bytes + size),
            None => kinds.push((tensor, 1, size)),
        }
    }
    kinds.sort_by_key(|(.., size)| std::cmp::Reverse(*size));
    for (tensor, count, size) in kinds {
        let note = tensor.note.as_ref().map(|note| format!("  ({note})")).unwrap_or_default();
        let (stored, count) = (tensor.stored.name(), counted(count, "tensor"));
        print_line!("{stored:<5} {count:>12} {:>12}{note}", bytes(size))?;
    }
    Ok(())
}

/// Prints what pruning has left of each matrix that a recipe prunes.
fn pruned(tensors: &[WrittenTensor]) -> Result<()> {
    for tensor in tensors {
        if let Some(sparsity) = tensor.sparsity {
            let (density, error) = (sparsity.density(), sparsity.relative_error());
            print_line!("{:<40} density {density:.3}, relative error {error:.3}", tensor.name)?;
        }
    }
    Ok(())
}

fn row(tensor: &WrittenTensor) -> Value {
    let sparsity = tensor
        .sparsity
        .map(|sparsity| json!({"density": sparsity.density(), "relative_error": sparsity.relative_error()}));
    json!({
        "name": tensor.name,
        "shape": tensor.shape.extents(),
        "source": tensor.source.name(),
        "stored": tensor.stored.name(),
        "note": tensor.note,
        "sparsity": sparsity,
    })
}
