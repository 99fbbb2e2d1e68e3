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

    /// Where pages lie on a machine with these nodes with memory.
    ///
    /// # Errors
    /// If it names a node that is none of them, or one of them has a number that Linux does not know.
    pub(crate) fn on(self, nodes: &[usize]) -> Result<PagePlacement, Error> {
        if let Some(node) = nodes.iter().find(|node| **node >= MAX_NODES) {
            let sentence = format!(
                "this system lists NUMA node {node}, but nodes have numbers below {MAX_NODES}; \
                 leave memory-policy out"
            );
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
        let (node, placement) = match self {
            MemoryPolicy::Local => return Ok(PagePlacement::Local),
            MemoryPolicy::Interleave => return Ok(PagePlacement::Interleave(nodes.to_vec())),
            MemoryPolicy::Node(node) => (node, PagePlacement::Preferred(node)),
            MemoryPolicy::Strict(node) => (node, PagePlacement::Bind(node)),
        };
        if nodes.contains(&node) {
            return Ok(placement);
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

/// A policy with the numbers of the nodes that it names, which are below [`MAX_NODES`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PagePlacement {
    /// On the node of the thread that first writes a page.
    Local,
    /// On these nodes in turn.
    Interleave(Vec<usize>),
    /// On this node while it has room, then on others.
    Preferred(usize),
    /// On this node only.
    Bind(usize),
}

impl PagePlacement {
    fn policy(&self) -> MemoryPolicy {
        match self {
            PagePlacement::Local => MemoryPolicy::Local,
            PagePlacement::Interleave(_) => MemoryPolicy::Interleave,
            PagePlacement::Preferred(node) => MemoryPolicy::Node(*node),
            PagePlacement::Bind(node) => MemoryPolicy::Strict(*node),
        }
    }

    /// The error of a system that refuses it, with its reason.
    pub fn refused(&self, reason: &std::io::Error) -> Error {
        let sentence = format!(
            "this system refuses memory-policy {} for the weights ({reason}); leave the option away",
            self.policy().name()
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
        assert_eq!(on(MemoryPolicy::Interleave).unwrap(), PagePlacement::Interleave(vec![0, 2]));
        assert_eq!(on(MemoryPolicy::Local).unwrap(), PagePlacement::Local);
        assert_eq!(on(MemoryPolicy::Node(0)).unwrap(), PagePlacement::Preferred(0));
        assert_eq!(on(MemoryPolicy::Strict(2)).unwrap(), PagePlacement::Bind(2));
        let error = on(MemoryPolicy::Node(1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused);
        assert_eq!(
            error.to_string(),
            "memory-policy node:1 names NUMA node 1; the nodes with memory are: 0, 2"
        );
        assert_eq!(
            MemoryPolicy::Interleave.on(&[0, 1024]).unwrap_err().to_string(),
            "this system lists NUMA node 1024, but nodes have numbers below 1024; leave memory-policy out"
        );
    }
}
