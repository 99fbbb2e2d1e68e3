//! `girih pull`: downloads a model.

use std::time::Duration;

use girih_hub::{GgufChoice, ModelId, PullOptions, PullProgress, Pulled};
use serde_json::json;

use crate::args::ShowArgs;
use crate::cmd::outcome::Outcome;
use crate::error::Result;
use crate::loading::environment;
use crate::model_name;
use crate::output::{bytes, counted, print_json};
use crate::progress::{Bar, Show, Unit};

#[derive(Debug, clap::Args)]
pub struct PullArgs {
    /// org/name, org/name@revision, org/name:QUANT, or the URL of a model's page; QUANT selects a GGUF file by its label, such as Q4_K_M.
    id: String,
    #[command(flatten)]
    show: ShowArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Downloads a model and prints its path.
///
/// # Errors
/// When the id is malformed, or the download fails.
pub fn pull(args: &PullArgs) -> Result<Outcome> {
    let environment = environment()?;
    let id = model_name::id(&args.id, &environment.endpoint)?;
    let show = args.show.show();
    let mut watcher = PullWatcher { id: &id, show, bar: show.bar("pulling", 0, Unit::Bytes), total: 0 };
    let pulled = girih_hub::pull(&id, &environment, &PullOptions::default(), &mut |progress| {
        watcher.update(&progress)
    })?;
    watcher.bar.finish_and_clear();
    show.note(summary(&pulled));
    let path = pulled.snapshot.path().display().to_string();
    if args.json {
        print_json(&json!({
            "id": id.to_string(),
            "gguf": pulled.snapshot.gguf,
            "commit": pulled.snapshot.commit,
            "path": path,
            "files": pulled.files,
            "bytes": pulled.bytes,
            "fetched_bytes": pulled.fetched,
            "seconds": pulled.time.as_secs_f64(),
        }))?;
    } else {
        print_line!("{path}")?;
    }
    Ok(Outcome::Done)
}

/// The size, the time and the rate of a download.
fn summary(pulled: &Pulled) -> String {
    let (files, all) = (counted(pulled.files, "file"), bytes(pulled.bytes));
    if pulled.fetched == 0 {
        return format!("complete already: {files}, {all}");
    }
    let (fetched, time) = (bytes(pulled.fetched), pulled.time);
    let of_all = if pulled.fetched < pulled.bytes { format!(" of {all}") } else { String::new() };
    let seconds = time.max(Duration::from_millis(1)).as_secs_f64();
    let rate = bytes((pulled.fetched as f64 / seconds) as u64);
    format!("pulled {fetched}{of_all} in {seconds:.1} s ({rate}/s)")
}

/// Shows the progress of a download as one bar over all files.
struct PullWatcher<'a> {
    id: &'a ModelId,
    show: Show,
    bar: Bar,
    /// The size of all files.
    total: u64,
}

impl PullWatcher<'_> {
    fn update(&mut self, progress: &PullProgress<'_>) {
        match progress {
            PullProgress::Chosen(GgufChoice { label, others }) => {
                let repo = self.id.repo();
                let rest = format!("choose another one as {repo}:QUANT from {others}");
                self.show.note(format!("{repo} has several GGUF files: pulling {label}; {rest}"));
            }
            PullProgress::Planned { files, bytes: all, present } => {
                let there = match present {
                    0 => String::new(),
                    present => format!(" ({} already downloaded)", bytes(*present)),
                };
                self.show.note(format!("{}, {}{there}", counted(*files, "file"), bytes(*all)));
                self.total = *all;
                self.bar = self.show.bar("pulling", *all, Unit::Bytes);
                self.bar.begin_at(*present);
            }
            PullProgress::Received { left, .. } => self.bar.set(self.total - left, self.total),
            PullProgress::Finished { .. } => {}
            PullProgress::Retrying { why, wait } => {
                let line = format!("{why}; retrying in {:.1} s", wait.as_secs_f64());
                self.bar.pause(|| self.show.note(line));
            }
        }
    }
}
