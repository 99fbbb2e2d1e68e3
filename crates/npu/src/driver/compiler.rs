//! From a graph to its groups and schedules, each program compiled once: what
//! was compiled before is remembered, and found again on disk.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use girih_graph::Graph;
use girih_tensor::Result;

use crate::Target;
use crate::blob::BlobCache;
use crate::form::groups::{ArrayProgram, Groups};
use crate::form::schedule::Schedule;
use crate::pass::{self, ArrayMapping, Dump, Policy};

/// Compiles graphs for one target by one mapping.
#[derive(Debug)]
pub struct Compiler {
    target: Target,
    mapping: ArrayMapping,
    cache: Option<BlobCache>,
    tell: Tell,
    known: Mutex<HashMap<String, Arc<Schedule>>>,
}

/// Who hears of blobs that were refused or could not be kept: a sentence each.
pub struct Tell(Box<dyn Fn(&str) + Send + Sync>);

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
    pub fn new(target: Target, mapping: impl Into<ArrayMapping>, cache: Option<BlobCache>) -> Compiler {
        let (mapping, tell) = (mapping.into(), Tell::new(|_| ()));
        Compiler { target, mapping, cache, tell, known: Mutex::new(HashMap::new()) }
    }

    /// The same, but it keeps blobs in `cache`.
    #[must_use]
    pub fn with_cache(self, cache: BlobCache) -> Compiler {
        Compiler { cache: Some(cache), ..self }
    }

    /// The same, but `tell` hears why a blob was refused or could not be kept.
    #[must_use]
    pub fn telling(self, tell: Tell) -> Compiler {
        Compiler { tell, ..self }
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

    /// Compiles a graph. What the cache has is taken from it; a blob of it that
    /// is refused is compiled again, and replaced.
    ///
    /// # Errors
    /// As [`Compiler::groups`]; when a program does not fit the target.
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
    fn schedule(&self, program: &ArrayProgram, dump: &mut dyn Dump) -> Result<(Arc<Schedule>, bool)> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let key = BlobCache::key(program, &self.target);
        if let Some(schedule) = known.get(&key) {
            return Ok((schedule.clone(), false));
        }
        let kept = self.kept(program);
        let new = kept.is_none();
        let schedule = match kept {
            Some(schedule) => schedule,
            None => pass::compile(program, &self.target, dump)?,
        };
        if let Some(cache) = self.cache.as_ref().filter(|_| new)
            && let Err(error) = cache.put(program, &self.target, &schedule)
        {
            (self.tell.0)(&format!("{error}; the blob of {} is not kept", program.name));
        }
        let schedule = Arc::new(schedule);
        known.insert(key, schedule.clone());
        Ok((schedule, new))
    }

    /// The schedule that the cache has.
    fn kept(&self, program: &ArrayProgram) -> Option<Schedule> {
        self.cache.as_ref()?.get(program, &self.target).unwrap_or_else(|error| {
            (self.tell.0)(&format!("{error}; {} is compiled again", program.name));
            None
        })
    }
}

impl Tell {
    /// Hands each sentence to `tell`.
    pub fn new(tell: impl Fn(&str) + Send + Sync + 'static) -> Tell {
        Tell(Box::new(tell))
    }
}

impl fmt::Debug for Tell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tell")
    }
}
