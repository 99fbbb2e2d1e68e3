//! `girih npu report`: a model's work on the array, as text, JSON or a page of
//! HTML; published times compared with simulated ones; and the figures that the
//! simulator uses.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use clap::ValueHint;
use clap::builder::{OsStringValueParser, TypedValueParser};
use girih_npu::Target;
use girih_npu::driver::Scenario;
use girih_npu::emit::ROW_METER;
use girih_npu::pass::NoDump;
use girih_npu::sim::Simulator;
use girih_npu_lab::published::{
    EnergyRow, ErrorSpread, KernelFamily, LeftOut, LeftOutRow, LeftOutTable, Prediction, RefitFigure,
    RefitSource, RowRole, Validation, ValidationProgress, built_in_tables, leave_out, validate,
};
use girih_npu_lab::report::{ModelReport, PublishedComparison, page};
use serde_json::json;

use super::args::{CompileArgs, named, target_help};
use super::emit_folder::EmitFolder;
use crate::args::ShowArgs;
use crate::cmd::outcome::Outcome;
use crate::error::{Error, Result};
use crate::input::text_file;
use crate::output::{bytes, counted, print, print_json};
use crate::progress::Unit;

/// The maximum size of a table in bytes.
const TABLE_BYTES: u64 = 1 << 20;

/// The value of `--validate` and `--published` that stands for the tables that girih brings.
const BUILT_IN: &str = "built-in";

/// The options that need a model.
const MODEL_OPTIONS: [&str; 7] = ["arch", "target", "mapping", "rows", "context", "blobs", "blobs_limit"];

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    subject: ReportSubject,
    /// Only rows whose table or label contains PART.
    #[arg(long, value_name = "PART", default_value = "", requires = "validate")]
    only: String,
    /// Also write girih's program for the op of each row into DIR for the tools of a device, with a script that measures
    /// them there.
    #[arg(long, value_name = "DIR", requires = "validate", conflicts_with_all = ["leave_out", "json"], value_hint = ValueHint::DirPath)]
    emit: Option<PathBuf>,
    /// Fit all figures without the rows of a family of kernels, and test them on these rows: gemm, gemv, attention,
    /// norms, rope, silu or add; all of them in turn with `all`; with `nothing`, fit to all rows.
    #[arg(long, value_name = "FAMILY", conflicts_with = "only", value_parser = left_out_families)]
    leave_out: Option<LeftOutFamilies>,
    /// Print JSON.
    #[arg(long, conflicts_with = "figures")]
    json: bool,
    /// Write a page of HTML to this file: pictures and tables, without scripts or external links.
    #[arg(long, value_name = "FILE", requires = "model")]
    html: Option<PathBuf>,
    /// Compare with the published times of Llama-3.2-1B, or with those in the tables of a folder.
    #[arg(long, value_name = "DIR", requires = "model", num_args = 0..=1, default_missing_value = BUILT_IN,
          value_parser = OsStringValueParser::new().map(PublishedTables::of), value_hint = ValueHint::DirPath)]
    published: Option<PublishedTables>,
    #[command(flatten)]
    compile: CompileArgs,
    #[command(flatten)]
    show: ShowArgs,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct ReportSubject {
    /// Model, as for the other commands; a `config.json`, whose weights are not needed; or a file *.graph from
    /// `girih inspect --graph`.
    model: Option<String>,
    /// Simulate each published measurement with its tiles: those that girih brings, or those in the
    /// tables of a folder.
    #[arg(long, value_name = "DIR", conflicts_with_all = MODEL_OPTIONS, num_args = 0..=1,
          default_missing_value = BUILT_IN, value_parser = OsStringValueParser::new().map(PublishedTables::of),
          value_hint = ValueHint::DirPath)]
    validate: Option<PublishedTables>,
    #[arg(long, value_name = "TARGET", conflicts_with_all = MODEL_OPTIONS,
          help = format!("Print all figures of a target and its kernels, with grade and source. {}", target_help()))]
    figures: Option<String>,
}

/// Where published times come from.
#[derive(Clone, Debug)]
enum PublishedTables {
    /// The tables that girih brings.
    BuiltIn,
    /// The tables (.csv) of a folder.
    Folder(PathBuf),
}

pub fn run(args: &Args) -> Result<Outcome> {
    let array = |name: &str| Simulator::new(&Target::named(name)?);
    if let Some(name) = &args.subject.figures {
        let simulator = Simulator::new(&named(name)?)?;
        print(simulator.target())?;
        print(simulator.table())?;
    }
    if let Some(LeftOutFamilies(families)) = &args.leave_out {
        let tables = args.subject.validate.as_ref();
        let tables =
            tables.ok_or_else(|| Error::call("--leave-out is for --validate; omit it, or add --validate"))?;
        return report_left_out(tables, families, args);
    }
    if let Some(tables) = &args.subject.validate {
        let show = args.show.show();
        let (bar, mut begun) = (show.bar("simulating", 0, Unit::Things("measurements")), 0);
        let validation = validate(&tables.read()?, &args.only, &array, &mut |progress| {
            let ValidationProgress { table, left_in_table, done, total } = progress;
            bar.set(done as u64, total as u64);
            if left_in_table == 0 {
                let rows = counted((done - begun) as u64, "measurement");
                bar.pause(|| show.detail(format!("{table}: {rows} simulated")));
                begun = done;
            }
        })?;
        bar.finish_and_clear();
        if validation.predictions.is_empty() {
            let reasons = validation.skipped.iter().map(|row| format!("\nnot simulated: {row}"));
            let sentence = format!("{tables}: no table has a measurement that can be simulated");
            return Err(Error::call(sentence + &reasons.collect::<String>()));
        }
        if args.json {
            print_json(&described(&validation))?;
        } else {
            print(&validation)?;
        }
        if let Some(folder) = &args.emit {
            emit_rows(folder, &validation)?;
        }
    }
    if let Some(model) = &args.subject.model {
        report_model(model, args)?;
    }
    Ok(Outcome::Done)
}

/// Writes girih's program for the op of each row that has one, and the list of these rows.
fn emit_rows(path: &Path, validation: &Validation) -> Result<()> {
    let mut folder = EmitFolder::open(path, &[("measure_rows.py", ROW_METER)])?;
    let mut rows = Vec::new();
    for Prediction { measured, .. } in &validation.predictions {
        let compiled = match measured.compiled() {
            Ok(Some(compiled)) => compiled,
            Ok(None) => continue,
            Err(error) => {
                print_line!("not compiled: {} {}: {error}", measured.table, measured.label)?;
                continue;
            }
        };
        if let Some(name) = folder.program(&compiled.schedule, &Target::named(measured.target)?)? {
            rows.push(json!({
                "module": format!("{name}.mlir"),
                "manifest": format!("{name}.json"),
                "table": measured.table,
                "label": measured.label,
                "target": measured.target,
                "published_us": measured.micros,
                "simulated_us": compiled.micros,
            }));
        }
    }
    folder.replace("rows.json", &serde_json::to_string_pretty(&rows)?)?;
    let all = counted(validation.predictions.len(), "row");
    print_line!("{}: rows.json has {} of {all}", path.display(), rows.len())
}

/// The families that are left out, one after another; none to fit to all rows.
#[derive(Clone, Debug)]
struct LeftOutFamilies(Vec<Option<KernelFamily>>);

fn left_out_families(name: &str) -> std::result::Result<LeftOutFamilies, String> {
    let families = KernelFamily::ALL;
    match name {
        "all" => Ok(LeftOutFamilies(families.map(Some).to_vec())),
        "nothing" => Ok(LeftOutFamilies(vec![None])),
        name => match families.into_iter().find(|family| family.name() == name) {
            Some(family) => Ok(LeftOutFamilies(vec![Some(family)])),
            None => {
                let known = families.map(KernelFamily::name).join(", ");
                Err(format!("no family of kernels has this name: known are {known}, all and nothing"))
            }
        },
    }
}

/// Fits figures without families, and prints their errors.
fn report_left_out(
    tables: &PublishedTables,
    families: &[Option<KernelFamily>],
    args: &Args,
) -> Result<Outcome> {
    let show = args.show.show();
    let (files, mut all) = (tables.read()?, Vec::new());
    for family in families {
        let bar = show.bar("fitting", 0, Unit::Things("figures"));
        let one = leave_out(&files, *family, &mut |done, total| bar.set(done as u64, total as u64))?;
        bar.finish_and_clear();
        if one.rows.is_empty() {
            return Err(Error::call(format!("{tables}: no table has a row of {}", one.name())));
        }
        if !args.json {
            print(&one)?;
        }
        all.push(one);
    }
    if args.json {
        print_json(&all.iter().map(described_left_out).collect::<Vec<_>>())?;
    } else {
        print(LeftOutTable(&all))?;
    }
    Ok(Outcome::Done)
}

fn described_left_out(one: &LeftOut) -> serde_json::Value {
    let figure = |figure: &RefitFigure| {
        json!({
            "name": figure.name,
            "repository": figure.committed,
            "refit": figure.refit,
            "rows": match figure.source {
                RefitSource::Rows(rows) => rows,
                RefitSource::Derived(_) => 0,
            },
            "why": match figure.source {
                RefitSource::Rows(_) => None,
                RefitSource::Derived(reason) => Some(reason),
            },
        })
    };
    let row = |row: &LeftOutRow| {
        json!({
            "table": row.measured.table,
            "label": row.measured.label,
            "measured_us": row.measured.micros,
            "refit_us": row.refit,
            "repository_us": row.committed,
        })
    };
    let [refit, committed] = one.spreads();
    json!({
        "left_out": one.name(),
        "figures": one.figures.iter().map(figure).collect::<Vec<_>>(),
        "rows": one.rows.iter().map(row).collect::<Vec<_>>(),
        "median_error": refit.median,
        "error_90th_percentile": refit.high,
        "repository_median_error": committed.median,
        "repository_error_90th_percentile": committed.high,
    })
}

/// Reports a model's work on the array.
fn report_model(model: &str, args: &Args) -> Result<()> {
    let compiler = args.compile.compiler()?;
    let target = compiler.target();
    let graphs = args.compile.graphs_of(model)?;
    let mut steps = Vec::new();
    for graph in &graphs {
        steps.push((graph, compiler.compile(graph, &mut NoDump)?, Scenario::last_position(graph)));
    }
    let steps: Vec<_> =
        steps.iter().map(|(graph, compiled, position)| (*graph, compiled, *position)).collect();
    let report = ModelReport::of(model, &args.compile.mapping, target, &steps)?;
    let array = |name: &str| Simulator::new(&Target::named(name)?);
    let compared = match &args.published {
        None => None,
        Some(tables) => {
            let none = || Error::call(format!("{tables}: no table has times of whole programs"));
            Some(PublishedComparison::of(&report, &tables.read()?, &array)?.ok_or_else(none)?)
        }
    };
    let mut written = None;
    if let Some(path) = &args.html {
        let text = page(&report, compared.as_ref());
        std::fs::write(path, &text)
            .map_err(|error| Error::work(format!("{}: cannot be written: {error}", path.display())))?;
        written = Some((path, text.len() as u64));
    }
    if args.json {
        print_json(&json!({"verdict": report.verdict(), "report": report, "published": compared}))?;
    } else {
        print(&report)?;
        compared.map_or(Ok(()), print)?;
    }
    if let Some((path, size)) = written {
        args.show.show().note(format!("{}: {}", path.display(), bytes(size)));
    }
    Ok(())
}

impl PublishedTables {
    fn of(value: OsString) -> PublishedTables {
        if value == BUILT_IN { PublishedTables::BuiltIn } else { PublishedTables::Folder(value.into()) }
    }

    /// The names and texts of the tables; those of a folder are sorted by name.
    fn read(&self) -> Result<Vec<(String, String)>> {
        let PublishedTables::Folder(folder) = self else { return Ok(built_in_tables()) };
        let failed = |error: io::Error| Error::call(format!("{}: cannot be read: {error}", folder.display()));
        let mut tables = Vec::new();
        for entry in folder.read_dir().map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_none_or(|extension| extension != "csv") {
                continue;
            }
            let text = text_file(&path, TABLE_BYTES)?;
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            tables.push((name, text));
        }
        tables.sort();
        Ok(tables)
    }
}

impl fmt::Display for PublishedTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PublishedTables::BuiltIn => f.write_str("the built-in tables"),
            PublishedTables::Folder(folder) => write!(f, "{}", folder.display()),
        }
    }
}

fn described(validation: &Validation) -> serde_json::Value {
    let row = |row: &Prediction| {
        json!({
            "table": row.measured.table,
            "label": row.measured.label,
            "target": row.measured.target,
            "measured_us": row.measured.micros,
            "simulated_us": row.micros,
            "error": row.error(),
            "role": row.measured.role.name(),
            "why": match row.measured.role {
                RowRole::Fitted(figures) => Some(figures),
                RowRole::HeldOut => None,
            },
        })
    };
    let energy = |row: &EnergyRow| {
        json!({
            "label": row.label,
            "watts": row.watts,
            "published_joules": row.published_joules,
            "simulated_joules": row.joules,
            "tokens": row.tokens,
        })
    };
    let ErrorSpread { median, high, count: rows } = validation.spread(|_| true);
    json!({
        "rows": validation.predictions.iter().map(row).collect::<Vec<_>>(),
        "skipped": validation.skipped,
        "energies": validation.energies.iter().map(energy).collect::<Vec<_>>(),
        "contradictions": validation.contradictions,
        "count": rows,
        "median_error": median,
        "error_90th_percentile": high,
    })
}
