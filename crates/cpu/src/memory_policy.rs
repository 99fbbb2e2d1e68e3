//! On which NUMA nodes the pages of packed weights lie.

use girih_graph::{Error, ErrorKind};

/// How the system places the pages of packed weights. It does not affect results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryPolicy {
    /// On the node of the thread that fills them, whatever policy the process has.
    Local,
    /// On all nodes in turn.
    Interleave,
    /// On this node while it has room, then on others.
    Node(usize),
    /// On this node only.
    Strict(usize),
}

/// The number of NUMA nodes for which Linux can be built (`CONFIG_NODES_SHIFT` of at most 10).
pub(crate) const MAX_NODES: usize = 1024;

impl MemoryPolicy {
    /// Parses `local`, `interleave`, `node:N` or `strict:N`. The error is a clause.
    ///
    /// # Errors
    /// If the text is none of them.
    pub fn parse(text: &str) -> Result<MemoryPolicy, String> {
        let node = |number: &str| number.parse().ok().filter(|&node: &usize| node < MAX_NODES);
        let policy = match (text, text.split_once(':')) {
            ("local", _) => Some(MemoryPolicy::Local),
            ("interleave", _) => Some(MemoryPolicy::Interleave),
            (_, Some(("node", number))) => node(number).map(MemoryPolicy::Node),
            (_, Some(("strict", number))) => node(number).map(MemoryPolicy::Strict),
            _ => None,
        };
        policy.ok_or_else(|| {
            "must be local, interleave, node:N or strict:N, with the number of a NUMA node".to_owned()
        })
    }

    /// Its text, as [`MemoryPolicy::parse`] reads it.
    pub fn name(self) -> String {
        match self {
            MemoryPolicy::Local => "local".to_owned(),
            MemoryPolicy::Interleave => "interleave".to_owned(),
            MemoryPolicy::Node(node) => format!("node:{node}"),
            MemoryPolicy::Strict(node) => format!("strict:{node}"),
        }
    }

    /// The nodes that it names, of the machine's `nodes` with memory.
    ///
    /// # Errors
    /// If it names a node that is none of them.
    pub(crate) fn on(self, nodes: &[usize]) -> Result<PagePlacement, Error> {
        let (MemoryPolicy::Node(node) | MemoryPolicy::Strict(node)) = self else {
            let all = if self == MemoryPolicy::Interleave { nodes.to_vec() } else { Vec::new() };
            return Ok(PagePlacement { policy: self, nodes: all });
        };
        if nodes.contains(&node) {
            return Ok(PagePlacement { policy: self, nodes: vec![node] });
        }
        let known: Vec<String> = nodes.iter().map(usize::to_string).collect();
        let sentence = format!(
            "memory-policy {} names NUMA node {node}; the nodes with memory are: {}",
            self.name(),
            known.join(", ")
        );
        Err(Error::with_kind(ErrorKind::Refused, sentence))
    }
}

/// A policy with the numbers of the nodes that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PagePlacement {
    pub policy: MemoryPolicy,
    pub nodes: Vec<usize>,
}

impl PagePlacement {
    /// The error of a system that refuses it, with its reason.
    pub fn refused(&self, reason: &std::io::Error) -> Error {
        let sentence = format!(
            "this system refuses memory-policy {} for the weights ({reason}); leave the option away",
            self.policy.name()
        );
        Error::with_kind(ErrorKind::Refused, sentence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed() {
        for name in ["local", "interleave", "node:0", "strict:3"] {
            assert_eq!(MemoryPolicy::parse(name).unwrap().name(), name);
        }
        for bad in ["", "near", "node", "node:", "node:-1", "strict:1024", "local:0", "node:0:1"] {
            let error = MemoryPolicy::parse(bad).unwrap_err();
            assert!(error.starts_with("must be local, interleave"), "{bad}: {error}");
        }
    }

    #[test]
    fn a_node_without_memory_is_refused() {
        let on = |policy: MemoryPolicy| policy.on(&[0, 2]);
        assert_eq!(on(MemoryPolicy::Interleave).unwrap().nodes, [0, 2]);
        assert_eq!(on(MemoryPolicy::Local).unwrap().nodes, [0; 0]);
        assert_eq!(on(MemoryPolicy::Strict(2)).unwrap().nodes, [2]);
        let error = on(MemoryPolicy::Node(1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused);
        assert_eq!(
            error.to_string(),
            "memory-policy node:1 names NUMA node 1; the nodes with memory are: 0, 2"
        );
    }
}
