//! `girih npu sim --trace`: writes a trace for Perfetto.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use girih_graph::Graph;
use girih_npu::Target;
use girih_npu::driver::CompiledGraph;
use girih_npu_lab::report::Trace;

use crate::error::{Error, Result};
use crate::output::{bytes, print_note};

#[derive(Debug, clap::Args)]
pub struct TraceArgs {
    /// Write a trace of the steps to this file: JSON, for ui.perfetto.dev or chrome://tracing.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Maximum number of events per launch: the first and the last ones are kept.
    #[arg(long, value_name = "N", default_value = "10000", requires = "trace",
          value_parser = clap::value_parser!(u32).range(2..=10_000_000))]
    trace_events: u32,
}

/// A trace that is being recorded.
pub struct Tracing<'a> {
    path: &'a Path,
    trace: Trace,
}

impl TraceArgs {
    /// Begins a trace if `--trace` is set.
    pub fn begin(&self, target: &Target) -> Option<Tracing<'_>> {
        let path = self.trace.as_deref()?;
        Some(Tracing { path, trace: Trace::new(target, self.trace_events as usize) })
    }
}

impl Tracing<'_> {
    /// Adds a step.
    ///
    /// # Errors
    /// When a schedule is faulty.
    pub fn add(
        &mut self,
        graph: &Graph,
        compiled: &CompiledGraph,
        target: &Target,
        position: u32,
    ) -> Result<()> {
        let name = if graph.key.rows > 1 { "prefill" } else { "token" };
        Ok(self.trace.add(name, graph, compiled, target, position)?)
    }

    /// Writes the file. Unless `quiet`, prints its size and the events left out.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(self, quiet: bool) -> Result<()> {
        let failed = |error: &dyn std::fmt::Display| Error::work(format!("{}: {error}", self.path.display()));
        let mut file = BufWriter::new(File::create(self.path).map_err(|error| failed(&error))?);
        serde_json::to_writer(&mut file, &self.trace).map_err(|error| failed(&error))?;
        file.flush().map_err(|error| failed(&error))?;
        if quiet {
            return Ok(());
        }
        let size = std::fs::metadata(self.path)?.len();
        print_note(format_args!("{}: {} events, {}", self.path.display(), self.trace.len(), bytes(size)));
        for step in &self.trace.about().steps {
            for text in &step.left_out {
                print_note(format_args!("left out of {}: {text}", step.name));
            }
        }
        Ok(())
    }
}
