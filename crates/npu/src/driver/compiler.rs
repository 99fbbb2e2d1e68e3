//! Compiles a graph to groups and schedules. Each program is compiled once;
//! compiled programs are cached in memory and on disk.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use girih_graph::{Graph, Op};
use girih_tensor::Result;

use super::compiled::CompiledGraph;
use super::grouping;
use super::placement::AttentionCost;
use crate::blob::BlobCache;
use crate::form::groups::{ArrayProgram, Groups};
use crate::form::schedule::Schedule;
use crate::pass::{self, ArrayMapping, AttentionPlacement, Dump, Grouping, Policy};
use crate::target::Target;

/// Compiles graphs for one target with one mapping.
#[derive(Debug)]
pub struct Compiler {
    target: Target,
    mapping: ArrayMapping,
    cache: OnceLock<BlobCache>,
    warnings: WarningSink,
    known: Mutex<HashMap<String, Arc<Schedule>>>,
    /// The cost of attention in graphs, by [`attention_shape`].
    costs: Mutex<HashMap<String, Option<AttentionCost>>>,
    /// The cheaper grouping of graphs, by the [key](BlobCache::grouping_key) in the cache.
    groupings: Mutex<HashMap<String, Grouping>>,
}

/// Receives a sentence for each blob that was refused or could not be stored.
pub struct WarningSink(Box<dyn Fn(&str) + Send + Sync>);

impl Compiler {
    /// Creates a compiler that stores blobs in `cache`, if given.
    pub fn new(target: Target, mapping: impl Into<ArrayMapping>, cache: Option<BlobCache>) -> Compiler {
        let (mapping, warnings) = (mapping.into(), WarningSink::new(|_| ()));
        let cache = cache.map_or_else(OnceLock::new, OnceLock::from);
        let (known, costs, groupings) = Default::default();
        Compiler { target, mapping, cache, warnings, known, costs, groupings }
    }

    /// Stores blobs in `cache` from now on, and the groupings chosen so far, unless there is a cache already.
    pub fn use_cache(&self, cache: BlobCache) {
        self.cache.get_or_init(|| {
            let groupings = self.groupings.lock().unwrap_or_else(PoisonError::into_inner);
            groupings.iter().for_each(|(key, grouping)| self.keep_grouping(&cache, key, *grouping));
            cache
        });
    }

    /// Sets the receiver of warnings about blobs.
    #[must_use]
    pub fn with_warnings(self, warnings: WarningSink) -> Compiler {
        Compiler { warnings, ..self }
    }

    /// Passes a sentence to the receiver of warnings.
    pub fn warn(&self, sentence: &str) {
        (self.warnings.0)(sentence);
    }

    /// The target.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The policy: which ops share a program, and where attention runs.
    pub fn policy(&self) -> Policy {
        self.mapping.policy
    }

    /// The policy for a graph, with a definite grouping and place of attention.
    pub fn policy_for(&self, graph: &Graph) -> Policy {
        let mut policy = self.policy();
        if policy.attention == AttentionPlacement::ByCost {
            // Without a program for attention, the reason is in the graph.
            let cost = self.attention_cost(graph);
            policy.attention = cost.map_or(AttentionPlacement::Array, |cost| cost.placement());
        }
        if policy.grouping == Grouping::ByCost {
            let mapping = ArrayMapping { policy, ..self.mapping.clone() };
            let mut groupings = self.groupings.lock().unwrap_or_else(PoisonError::into_inner);
            let key = BlobCache::grouping_key(graph, &mapping, &self.target);
            let chosen = groupings.get(&key).copied();
            policy.grouping = chosen.unwrap_or_else(|| self.grouping(&key, graph, &mapping));
            groupings.insert(key, policy.grouping);
        }
        policy
    }

    /// The grouping that costs less: that of an earlier start, or by simulation.
    fn grouping(&self, key: &str, graph: &Graph, mapping: &ArrayMapping) -> Grouping {
        let Some(cache) = self.cache.get() else { return grouping::cheaper(graph, &self.target, mapping) };
        let kept = cache.grouping(key).unwrap_or_else(|error| {
            self.warn(&format!("{error}; the grouping is chosen again"));
            None
        });
        kept.unwrap_or_else(|| {
            let grouping = grouping::cheaper(graph, &self.target, mapping);
            self.keep_grouping(cache, key, grouping);
            grouping
        })
    }

    fn keep_grouping(&self, cache: &BlobCache, key: &str, grouping: Grouping) {
        if let Err(error) = cache.keep_grouping(key, grouping) {
            self.warn(&format!("{error}; the choice of the grouping is not kept"));
        }
    }

    /// The cost of a graph's attention on the array and on the host; none if the array does
    /// not support it.
    pub fn attention_cost(&self, graph: &Graph) -> Option<AttentionCost> {
        let mut costs = self.costs.lock().unwrap_or_else(PoisonError::into_inner);
        let cost = || {
            let cost = AttentionCost::of(graph, &self.target, &self.mapping);
            cost.unwrap_or_else(|_| Some(AttentionCost::unfit(graph)))
        };
        *costs.entry(attention_shape(graph)).or_insert_with(cost)
    }

    /// Partitions a graph into programs and host work.
    ///
    /// # Errors
    /// When neither host nor array supports an op.
    pub fn groups(&self, graph: &Graph, dump: &mut dyn Dump) -> Result<Groups> {
        let mapping = ArrayMapping { policy: self.policy_for(graph), ..self.mapping.clone() };
        pass::groups(graph, &self.target, &mapping, dump)
    }

    /// Compiles a graph. Cached programs are used; a blob that is refused is
    /// compiled again and replaced.
    ///
    /// # Errors
    /// Those of [`Compiler::groups`], and when a program does not fit the
    /// target.
    pub fn compile(&self, graph: &Graph, dump: &mut dyn Dump) -> Result<CompiledGraph> {
        let groups = self.groups(graph, dump)?;
        let mut fresh = 0;
        let mut schedules = Vec::new();
        for program in &groups.programs {
            let (schedule, new) = self.schedule(program, dump)?;
            fresh += usize::from(new);
            schedules.push(schedule);
        }
        Ok(CompiledGraph { groups, schedules, fresh })
    }

    /// Returns the schedule of a program, and whether it was compiled now.
    fn schedule(&self, program: &ArrayProgram, dump: &mut dyn Dump) -> Result<(Arc<Schedule>, bool)> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let key = BlobCache::key(program, &self.target);
        if let Some(schedule) = known.get(&key) {
            return Ok((schedule.clone(), false));
        }
        let cached = self.cached(program);
        let new = cached.is_none();
        let schedule = match cached {
            Some(schedule) => schedule,
            None => pass::compile(program, &self.target, dump)?,
        };
        if let Some(cache) = self.cache.get().filter(|_| new)
            && let Err(error) = cache.put(program, &self.target, &schedule)
        {
            self.warn(&format!("{error}; the blob of {} is not cached", program.name));
        }
        let schedule = Arc::new(schedule);
        known.insert(key, schedule.clone());
        Ok((schedule, new))
    }

    /// The schedule in the cache, if any.
    fn cached(&self, program: &ArrayProgram) -> Option<Schedule> {
        self.cache.get()?.get(program, &self.target).unwrap_or_else(|error| {
            self.warn(&format!("{error}; {} is compiled again", program.name));
            None
        })
    }
}

/// What the cost of a graph's attention depends on: whether its steps have one row and one
/// sequence, and the op and the heads of each attention.
fn attention_shape(graph: &Graph) -> String {
    let mut shape = format!("{} {}", graph.key.rows == 1, graph.key.sequences == 1);
    for node in graph.nodes.iter().filter(|node| matches!(node.op, Op::Attend { .. })) {
        let heads = node.inputs.iter().map(|input| graph.value(*input).shape.extents()[1..].to_vec());
        shape += &format!(" {:?} {:?}", node.op, heads.collect::<Vec<_>>());
    }
    shape
}

impl WarningSink {
    /// Passes each sentence to `receive`.
    pub fn new(receive: impl Fn(&str) + Send + Sync + 'static) -> WarningSink {
        WarningSink(Box::new(receive))
    }
}

impl fmt::Debug for WarningSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WarningSink")
    }
}
