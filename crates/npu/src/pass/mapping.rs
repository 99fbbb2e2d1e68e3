//! A mapping: how a model runs on an array, as data. It determines which
//! operations share a program, where attention runs, and the tiling of each kind
//! of launch.
//!
//! ```text
//! mapping mlir-air-tiles
//! grouping stitched
//! attention prefill
//! weights bf16
//! tile gemm : m=32 n=128 k=32 slices=8 keep=0
//! tile gemv k=8192 : herd=8x1 rows=2 step=2 depth=1 staged=1 parts=1
//! tile gemv : herd=8x1 rows=8 step=4 depth=1 staged=1 parts=1
//! ```
//!
//! The line `weights` may be absent: matrices then have the format that the model stores.
//!
//! A launch has the tiling of the first `tile` line whose words are all words of
//! its kernel, as printed in groups; `first` and floats are not compared. The tile
//! pass chooses the tiling of launches that match no line.

use std::fmt;
use std::io::{self, Read as _};
use std::path::Path;
use std::str::FromStr;

use girih_file::open_regular;
use girih_tensor::{Error, ErrorKind, Result};

use super::policy::{AttentionPlacement, Grouping, Policy};
use crate::form::groups::Kernel;
use crate::form::read::{FormLine, FormLines};
use crate::form::tiling::Tiling;

/// The maximum size of a mapping file in bytes.
const MAX_MAPPING_BYTES: u64 = 1 << 20;

/// A mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayMapping {
    /// The name, one word.
    pub name: String,
    /// Which operations share a program, and where attention runs.
    pub policy: Policy,
    /// The format of the matrices that matrix products read.
    pub weights: ArrayWeights,
    /// The rules of tilings; a launch has the tiling of the first that matches.
    pub tiles: Vec<TileRule>,
}

/// The format in which the array holds the matrices of matrix products.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ArrayWeights {
    /// Q4NX if the model stores them so, otherwise bf16.
    #[default]
    Stored,
    /// Q4NX. Others are packed when they are loaded, which changes results as quantizing the
    /// model does.
    Q4nx,
    /// bf16. Others are rounded when they are loaded.
    Bf16,
}

impl ArrayWeights {
    /// Every choice, by name.
    pub const ALL: &'static [(&'static str, ArrayWeights)] =
        &[("stored", ArrayWeights::Stored), ("q4nx", ArrayWeights::Q4nx), ("bf16", ArrayWeights::Bf16)];

    /// The name in mappings and options.
    pub fn name(self) -> &'static str {
        ArrayWeights::ALL.iter().find(|(_, weights)| *weights == self).map_or("unnamed", |(name, _)| name)
    }
}

impl FromStr for ArrayWeights {
    type Err = Error;

    fn from_str(text: &str) -> Result<ArrayWeights> {
        let known = ArrayWeights::ALL.iter().find(|(name, _)| *name == text);
        known.map(|(_, weights)| *weights).ok_or_else(|| {
            let names: Vec<&str> = ArrayWeights::ALL.iter().map(|(name, _)| *name).collect();
            Error::with_kind(ErrorKind::Refused, format!("must be one of {}", names.join(", ")))
        })
    }
}

/// The tiling of all launches of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TileRule {
    /// The kernel and the sizes that must be equal.
    pub words: Vec<String>,
    /// The tiling.
    pub tiling: Tiling,
}

/// The published Llama mapping by AMD's mlir-air, as far as girih supports it:
/// the tiles of matrix products; matrix-vector products with single buffers and
/// the vector sent again for each call; eight columns of one core for rows and
/// elements; one core for the norms and rotations of a single row.
const MLIR_AIR_TILES: &str = include_str!("mapping/mlir-air-tiles.mapping");

/// The published Gemma mapping by Du et al., as far as girih supports it.
const SEED_001: &str = include_str!("mapping/seed-001.mapping");

/// The built-in mappings with tilings, by name.
const WITH_TILINGS: [(&str, &str); 2] = [("mlir-air-tiles", MLIR_AIR_TILES), ("seed-001", SEED_001)];

impl From<Policy> for ArrayMapping {
    /// Creates the mapping of a policy without tilings.
    fn from(policy: Policy) -> ArrayMapping {
        let (name, weights) = (policy.name().to_owned(), ArrayWeights::default());
        ArrayMapping { name, policy, weights, tiles: Vec::new() }
    }
}

impl ArrayMapping {
    /// The columns of cores that the widest tiling needs.
    pub fn columns(&self) -> u32 {
        self.tiles.iter().map(|rule| rule.tiling.columns()).max().unwrap_or(1)
    }

    /// Returns the names of the built-in mappings.
    pub fn names() -> Vec<&'static str> {
        Policy::ALL.iter().map(|(name, _)| *name).chain(WITH_TILINGS.map(|(name, _)| name)).collect()
    }

    /// Returns a built-in mapping by name.
    ///
    /// # Errors
    /// When the name is unknown; the error lists the known names.
    pub fn named(name: &str) -> Result<ArrayMapping> {
        if let Some((_, text)) = WITH_TILINGS.iter().find(|(known, _)| *known == name) {
            return text.parse();
        }
        let policy = Policy::ALL.iter().find(|(known, _)| *known == name);
        policy.map(|(_, policy)| ArrayMapping::from(*policy)).ok_or_else(|| {
            let known = ArrayMapping::names().join(", ");
            Error::with_kind(ErrorKind::NotFound, format!("unknown mapping '{name}': known are {known}"))
        })
    }

    /// Reads a mapping: a file of at most 1 MiB, or else a built-in mapping by name.
    ///
    /// # Errors
    /// When there is no such file or name, or the file cannot be read, is too long
    /// or is malformed.
    pub fn read(name: &str) -> Result<ArrayMapping> {
        let path = Path::new(name);
        if !path.is_file() {
            return ArrayMapping::named(name)
                .map_err(|error| Error::with_kind(error.kind(), format!("{error}, or a file")));
        }
        let refused = |sentence: String| Error::with_kind(ErrorKind::Refused, format!("{name}: {sentence}"));
        let unreadable = |error: io::Error| refused(format!("cannot be read: {error}"));
        let mut bytes = Vec::new();
        let file = open_regular(path).map_err(unreadable)?;
        file.take(MAX_MAPPING_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        if bytes.len() as u64 > MAX_MAPPING_BYTES {
            let sentence = format!("is longer than {MAX_MAPPING_BYTES} bytes, the maximum for such a text");
            return Err(refused(sentence));
        }
        let text =
            String::from_utf8(bytes).map_err(|error| refused(format!("is not valid UTF-8: {error}")))?;
        text.parse().map_err(|error: Error| refused(error.to_string()))
    }

    /// Returns the tiling of a kernel, if a rule matches.
    pub fn tiling(&self, kernel: &Kernel) -> Option<Tiling> {
        let words = TileRule::words(kernel);
        let rule = self.tiles.iter().find(|rule| rule.words.iter().all(|word| words.contains(word)));
        rule.map(|rule| rule.tiling)
    }
}

impl TileRule {
    /// Creates a rule that matches only this kernel.
    pub fn of(kernel: &Kernel, tiling: Tiling) -> TileRule {
        TileRule { words: TileRule::words(kernel), tiling }
    }

    /// Returns the words that a rule may compare: the kernel's name and its integer
    /// sizes, except `first`, so that all parts of a product have the same tiling.
    pub fn words(kernel: &Kernel) -> Vec<String> {
        let text = kernel.to_string();
        let counts = |word: &&str| !word.starts_with("first=") && !word.ends_with('f');
        text.split(' ').filter(counts).map(str::to_owned).collect()
    }
}

impl fmt::Display for ArrayMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "mapping {}", self.name)?;
        writeln!(f, "grouping {}", self.policy.grouping.name())?;
        writeln!(f, "attention {}", self.policy.attention.name())?;
        if self.weights != ArrayWeights::default() {
            writeln!(f, "weights {}", self.weights.name())?;
        }
        let rule = |TileRule { words, tiling }: &TileRule, f: &mut fmt::Formatter<'_>| {
            writeln!(f, "tile {} : {tiling}", words.join(" "))
        };
        self.tiles.iter().try_for_each(|tile| rule(tile, f))
    }
}

impl FromStr for ArrayMapping {
    type Err = Error;

    fn from_str(text: &str) -> Result<ArrayMapping> {
        let mut lines = FormLines::new(text);
        let mut head = lines.need("mapping")?;
        let name = head.word("the mapping's name")?.to_owned();
        head.end()?;
        let grouping = choice(lines.need("grouping")?, Grouping::ALL, "a grouping")?;
        let attention =
            choice(lines.need("attention")?, AttentionPlacement::ALL, "a placement of attention")?;
        let weights = lines.take("weights");
        let weights =
            weights.map(|line| choice(line, ArrayWeights::ALL, "a format of weights")).transpose()?;
        let weights = weights.unwrap_or_default();
        let mut tiles = Vec::new();
        while let Some(mut line) = lines.take("tile") {
            let mut words = vec![line.word("a kernel")?.to_owned()];
            while !line.skip(":") {
                words.push(line.word("a size, or ':' before the tiling")?.to_owned());
            }
            let tiling = Tiling::read(kind(&words[0]), &mut line)?;
            tiles.push(TileRule { words, tiling });
        }
        lines.end()?;
        Ok(ArrayMapping { name, policy: Policy { grouping, attention }, weights, tiles })
    }
}

/// Returns the kernel's name of a rule without its activation, pairing or layout of weights.
fn kind(word: &str) -> &str {
    let known = ["rope", "gate", "gemm", "gemv", "append"]
        .into_iter()
        .find(|kind| word.split('_').next() == Some(*kind));
    known.unwrap_or(word)
}

/// Reads the last word of a line as one of several choices.
fn choice<T: Copy>(mut line: FormLine<'_>, all: &[(&str, T)], what: &str) -> Result<T> {
    let word = line.word(what)?;
    let found = all.iter().find(|(name, _)| *name == word).map(|(_, choice)| *choice);
    let choice = found.ok_or_else(|| {
        let known: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
        line.error(format!("has '{word}', which is not {what}: known are {}", known.join(", ")))
    })?;
    line.end()?;
    Ok(choice)
}
