//! From a graph to its groups and schedules, each program compiled once: what
//! was compiled before is remembered, and found again on disk.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use girih_graph::Graph;
use girih_tensor::Result;

use crate::Target;
use crate::blob::Cache;
use crate::form::groups::{Groups, Program};
use crate::form::schedule::Schedule;
use crate::pass::{self, Dump, Mapping, Policy};

/// Compiles graphs for one target by one mapping.
#[derive(Debug)]
pub struct Compiler {
    target: Target,
    mapping: Mapping,
    cache: Option<Cache>,
    known: Mutex<HashMap<String, Arc<Schedule>>>,
}

/// A compiled graph.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// Its programs and steps.
    pub groups: Groups,
    /// The schedule of each program.
    pub schedules: Vec<Arc<Schedule>>,
    /// How many of them were compiled just now.
    pub fresh: usize,
}

impl Compiler {
    /// A compiler that keeps blobs in `cache`, if one is given.
    pub fn new(target: Target, mapping: impl Into<Mapping>, cache: Option<Cache>) -> Compiler {
        let mapping = mapping.into();
        Compiler { target, mapping, cache, known: Mutex::new(HashMap::new()) }
    }

    /// The target.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// What shares a program and where attention runs.
    pub fn policy(&self) -> Policy {
        self.mapping.policy
    }

    /// Cuts a graph.
    ///
    /// # Errors
    /// When it has an op that neither host nor array computes.
    pub fn groups(&self, graph: &Graph, dump: &mut dyn Dump) -> Result<Groups> {
        pass::groups(graph, &self.target, &self.mapping, dump)
    }

    /// Compiles a graph.
    ///
    /// # Errors
    /// As [`Compiler::groups`]; when a program does not fit the target; when
    /// the cache cannot be read or written.
    pub fn compile(&self, graph: &Graph, dump: &mut dyn Dump) -> Result<Compiled> {
        let groups = self.groups(graph, dump)?;
        let mut fresh = 0;
        let mut schedules = Vec::new();
        for program in &groups.programs {
            let (schedule, new) = self.schedule(program, dump)?;
            fresh += usize::from(new);
            schedules.push(schedule);
        }
        Ok(Compiled { groups, schedules, fresh })
    }

    /// The schedule of a program, and whether it was compiled just now.
    fn schedule(&self, program: &Program, dump: &mut dyn Dump) -> Result<(Arc<Schedule>, bool)> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let key = Cache::key(program, &self.target);
        if let Some(schedule) = known.get(&key) {
            return Ok((schedule.clone(), false));
        }
        let kept = self.cache.as_ref().map_or(Ok(None), |cache| cache.get(program, &self.target))?;
        let new = kept.is_none();
        let schedule = match kept {
            Some(schedule) => schedule,
            None => pass::compile(program, &self.target, dump)?,
        };
        if let Some(cache) = self.cache.as_ref().filter(|_| new) {
            cache.put(program, &self.target, &schedule)?;
        }
        let schedule = Arc::new(schedule);
        known.insert(key, schedule.clone());
        Ok((schedule, new))
    }
}
