//! The time of a step by kind of node, such as the down projections of all layers.
//!
//! The model runs without the engine, without sampling or scheduling, so that the rows
//! add up to the time of the steps.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use girih_engine::{Tower, TowerInputs};
use girih_graph::backend::{Block, Input, NodeTime, Range32, Unwatched};
use girih_graph::{Outputs, Runner, Sequence, Step, Watch};
use girih_model::{ImageInputs, TowerFiles};
use girih_tensor::{Random, Shape};
use serde::Serialize;

use crate::progress::{ProgressWatcher, TokenCounter};
use crate::speed::random_tokens;
use crate::{Error, Result};

/// The time of all nodes of one kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProfileRow {
    /// The names of the nodes, with `*` for the number of the layer.
    pub nodes: String,
    /// Their operator.
    pub op: &'static str,
    /// The device's variant of the operator.
    pub variant: String,
    /// The number of times that a node ran.
    pub count: u64,
    /// The total time in seconds.
    pub seconds: f64,
    /// The bytes of weights and state that they had to read.
    pub bytes: u64,
    /// The operations that they had to execute.
    pub operations: u64,
}

/// The times of several steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Profile {
    /// One row per kind of node, in the order in which they run.
    pub rows: Vec<ProfileRow>,
    /// The number of steps.
    pub steps: u64,
    /// The number of rows of all steps.
    pub tokens: u64,
    /// The wall-clock time of all steps in seconds; of a simulated device, a caller replaces it by the sum of the rows.
    pub wall_seconds: f64,
    /// The index of a node's row, by operator and name.
    #[serde(skip)]
    known: HashMap<&'static str, HashMap<String, usize>>,
}

impl Profile {
    /// The sum of all rows, in seconds.
    pub fn node_seconds(&self) -> f64 {
        self.rows.iter().map(|row| row.seconds).sum()
    }

    /// Returns the row of a node; adds it if it is missing.
    fn row(&mut self, node: &NodeTime<'_>) -> &mut ProfileRow {
        let fits = |row: &ProfileRow| row.op == node.op && row.variant.split(' ').eq(variant_parts(node));
        if let Some(&index) = self.known.get(node.op).and_then(|known| known.get(node.name))
            && fits(&self.rows[index])
        {
            return &mut self.rows[index];
        }
        let nodes = kind(node.name);
        let found = self.rows.iter().position(|row| fits(row) && row.nodes == nodes);
        let index = found.unwrap_or_else(|| {
            let (op, variant) = (node.op, variant_parts(node).collect::<Vec<_>>().join(" "));
            self.rows.push(ProfileRow {
                nodes,
                op,
                variant,
                count: 0,
                seconds: 0.0,
                bytes: 0,
                operations: 0,
            });
            self.rows.len() - 1
        });
        self.known.entry(node.op).or_default().insert(node.name.to_owned(), index);
        &mut self.rows[index]
    }
}

impl Watch for Profile {
    fn wants(&self, _: &str) -> bool {
        false
    }

    fn value(&mut self, _: &str, _: &Shape, _: &[f32]) {}

    fn clocks(&self) -> bool {
        true
    }

    fn took(&mut self, node: &NodeTime<'_>) {
        let row = self.row(node);
        row.count += 1;
        row.seconds += node.time.as_secs_f64();
        row.bytes += node.bytes;
        row.operations += node.operations;
    }
}

/// Returns the parts of a node's variant; one empty part if it has none.
fn variant_parts<'a>(node: &NodeTime<'a>) -> impl Iterator<Item = &'static str> + use<'a> {
    node.variant.iter().copied().chain(node.variant.is_empty().then_some(""))
}

/// Replaces every number between dots with `*`.
fn kind(name: &str) -> String {
    let number = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<&str> = name.split('.').map(|part| if number(&part) { "*" } else { part }).collect();
    parts.join(".")
}

/// How many tokens are profiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amounts {
    /// Tokens of the sequence before those that are timed.
    pub depth: u32,
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Tokens after the prompt, each in a step of its own.
    pub generated: u32,
}

/// Runs a prompt of random tokens, then further tokens one by one. Returns the profiles
/// of both; the tokens of the depth run untimed before them. `progress` counts all of them.
///
/// # Errors
/// When the amounts do not fit into the loaded programs, or a step fails.
pub fn profile(
    runner: &mut dyn Runner,
    amounts: Amounts,
    seed: u64,
    progress: ProgressWatcher<'_>,
) -> Result<[Profile; 2]> {
    let Amounts { depth, prompt, generated } = amounts;
    let total = u64::from(depth) + u64::from(prompt) + u64::from(generated);
    let max_key = runner.max_key();
    if total > u64::from(max_key.context) {
        return Err(Error::new(format!(
            "the profile needs {total} tokens; the loaded programs support {}: enlarge the context",
            max_key.context
        )));
    }
    let tokens = random_tokens(&mut Random(seed), total as usize, runner.width());
    let blocks = runner.blocks().iter().map(|&count| (0..count).map(Block).collect()).collect();
    let mut sequence = ProfiledSequence { runner, tokens, blocks, position: 0 };
    let mut counter = TokenCounter::new(total, progress);
    let [mut prefill, mut decode] = [Profile::default(), Profile::default()];
    while sequence.position < depth {
        let rows = (depth - sequence.position).min(max_key.rows);
        sequence.step(rows, Outputs::None, &mut Unwatched)?;
        counter.add(rows.into());
    }
    while sequence.position < depth + prompt {
        let left = depth + prompt - sequence.position;
        let outputs = if left <= max_key.rows { Outputs::Last } else { Outputs::None };
        sequence.timed(left.min(max_key.rows), outputs, &mut prefill)?;
        counter.add(left.min(max_key.rows).into());
    }
    for _ in 0..generated {
        sequence.timed(1, Outputs::Last, &mut decode)?;
        counter.add(1);
    }
    Ok([prefill, decode])
}

/// Runs an image of random pixels: the only size, or the largest square. Returns the profile of the tower; its tokens are
/// the rows of the image.
///
/// # Errors
/// When the tower fails.
pub fn profile_image(tower: &mut Tower, files: &TowerFiles, seed: u64) -> Result<Profile> {
    let facts = &files.tower;
    let grid = facts.largest_square();
    let patches = Random(seed).numbers(grid.patches() * facts.patch_values());
    let ImageInputs { order, positions, position_rows, axes } = files.inputs(grid)?;
    let inputs = TowerInputs {
        patches: &patches,
        positions: &positions,
        position_rows: &position_rows,
        axes: &axes,
        windows: &order.windows,
    };
    let rows = facts.rows(grid);
    // The programs of patches, of cells, and of each tap.
    let mut programs = vec![Profile::default(); 2 + facts.taps.len()];
    let watches = programs.iter_mut().map(|profile| profile as &mut dyn Watch).collect();
    let begun = Instant::now();
    tower.rows_of(inputs, [grid.patches(), rows], watches)?;
    let wall_seconds = begun.elapsed().as_secs_f64();
    let all = programs.into_iter().flat_map(|profile| profile.rows).collect();
    Ok(Profile { rows: all, steps: 1, tokens: rows as u64, wall_seconds, known: HashMap::new() })
}

/// A sequence of given tokens that a runner runs step by step.
struct ProfiledSequence<'a> {
    runner: &'a mut dyn Runner,
    tokens: Vec<u32>,
    blocks: Vec<Vec<Block>>,
    position: u32,
}

impl ProfiledSequence<'_> {
    /// Runs a step and adds it to `profile`.
    fn timed(&mut self, rows: u32, outputs: Outputs, profile: &mut Profile) -> Result<()> {
        let time = self.step(rows, outputs, profile)?;
        profile.wall_seconds += time.as_secs_f64();
        profile.steps += 1;
        profile.tokens += u64::from(rows);
        Ok(())
    }

    /// Runs the next tokens; returns the time.
    fn step(&mut self, rows: u32, outputs: Outputs, watch: &mut dyn Watch) -> Result<Duration> {
        let first = self.position as usize;
        let blocks: Vec<&[Block]> = self.blocks.iter().map(Vec::as_slice).collect();
        let sequence = Sequence {
            blocks: &blocks,
            position: self.position,
            rows: Range32 { start: 0, end: rows },
            outputs,
            spans: &[],
        };
        let inputs = [Input::Ids(&self.tokens[first..first + rows as usize])];
        let begun = Instant::now();
        self.runner.step(Step { inputs: &inputs, sequences: &[sequence], watch })?;
        self.runner.output().wait()?;
        let time = begun.elapsed();
        if let Some(fault) = self.runner.state().take_range_faults().first() {
            return Err(fault.error(self.position + fault.row));
        }
        self.position += rows;
        Ok(time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_share_a_row_and_variants_do_not() {
        let node = |name, variant: &'static [&'static str]| NodeTime {
            name,
            op: "linear",
            variant,
            rows: 1,
            bytes: 10,
            operations: 20,
            time: Duration::from_millis(5),
        };
        let mut profile = Profile::default();
        for (name, variant) in [
            ("layers.0.ffn.up", &["x", "a"]),
            ("layers.11.ffn.up", &["x", "a"]),
            ("layers.0.ffn.up", &["x", "b"]),
            ("layers.0.ffn.up", &["x", "a"]),
        ] {
            profile.took(&node(name, variant));
        }
        let rows: Vec<_> =
            profile.rows.iter().map(|row| (row.nodes.as_str(), row.variant.as_str(), row.count)).collect();
        assert_eq!(rows, [("layers.*.ffn.up", "x a", 3), ("layers.*.ffn.up", "x b", 1)]);
        assert_eq!((profile.rows[0].bytes, profile.rows[0].operations), (30, 60));
        assert!((profile.node_seconds() - 0.020).abs() < 1e-9);
    }
}
