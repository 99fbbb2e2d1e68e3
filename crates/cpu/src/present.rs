//! Which units of a packed matrix are present: blocks of 32 rows by 32 columns or more that hold nothing but zeros are
//! left out.
//!
//! ```text
//! band = unit | unit | …      only those that are present, in ascending order
//! ```
//! A kernel multiplies a band of present units as a band of fewer columns, with the activations of the same columns. So
//! what is left out are sums of exact zeros, and the sums that remain keep their order.

use std::ops::Range;
use std::sync::Arc;

use girih_graph::{Graph, Node, Op, ValueId};

use crate::adapter_node::AdapterNode;
use crate::kernels::Table;
use crate::kernels::packed::{
    Band, Coding, DEPTH, GROUP, INTEGER_BIAS_FLOAT, LANES, Layout, PanelGroup, bands,
};
use crate::kernels::prefetch::PrefetchChoice;
use crate::memory::SharedBytes;

/// The largest share of units that a sparse matrix has. Above it, what skipping saves is within the noise of a step.
const MOST_PRESENT: f64 = 0.9;

/// The units of a band at most, as their numbers have two bytes.
const MAX_UNITS: usize = 1 << 16;

/// Bits in a word of a mask.
const WORD_BITS: usize = u64::BITS as usize;

/// What becomes of blocks of zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZeroBlocks {
    /// They are left out of matrices that have many of them.
    #[default]
    Skip,
    /// They are packed and multiplied like any others: the slow twin.
    Keep,
}

/// Which zeros a unit that is left out may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Zeros {
    /// Either sign: products with them add nothing to a sum.
    Any,
    /// Positive ones, for a table whose rows are values of the graph.
    Positive,
}

/// The units that a matrix may leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnitGrid {
    pub layout: Layout,
    /// Bands of all its matrices.
    pub bands: usize,
    /// Units of a band.
    pub units: usize,
    pub zeros: Zeros,
}

impl UnitGrid {
    /// The grid of `count` matrices of this many rows and columns; `None` for layouts that no kernel reads, and where
    /// units do not fill the columns.
    pub fn of(layout: Layout, [count, rows, columns]: [usize; 3], zeros: Zeros) -> Option<UnitGrid> {
        if matches!(layout, Layout::Stored(_)) || columns == 0 {
            return None;
        }
        let each = unit_columns(layout);
        let (bands, units) = (bands(rows).checked_mul(count)?, columns / each);
        let fits = columns.is_multiple_of(each)
            && units <= MAX_UNITS
            && bands.checked_mul(units).is_some_and(|all| u32::try_from(all).is_ok());
        fits.then_some(UnitGrid { layout, bands, units, zeros })
    }

    /// The grid of a weight of a graph. Matrices of adapters are packed whole: they are small.
    pub fn of_weight(graph: &Graph, weight: ValueId, layout: Layout, shape: [usize; 3]) -> Option<UnitGrid> {
        let is_of_adapter = |node: &Node| {
            AdapterNode::of(graph, node).is_some_and(|adapter| [adapter.a, adapter.b].contains(&weight))
        };
        if graph.nodes.iter().any(is_of_adapter) {
            return None;
        }
        let is_table = |node: &Node| node.op == Op::Embed && node.inputs.get(1) == Some(&weight);
        let zeros = if graph.nodes.iter().any(is_table) { Zeros::Positive } else { Zeros::Any };
        UnitGrid::of(layout, shape, zeros)
    }

    /// The words of the mask of a band, a bit for each unit.
    pub fn mask_words(self) -> usize {
        self.units.div_ceil(WORD_BITS)
    }

    /// The bytes of a unit.
    pub fn unit_bytes(self) -> usize {
        let (columns, bytes) = self.layout.unit();
        bytes * (unit_columns(self.layout) / columns)
    }

    /// Sets the bits of the units of a band that have other values than zeros.
    pub fn scan(self, table: &Table, band: &[u8], mask: &mut [u64]) {
        match self.layout.coding() {
            Some(coding) => self.scan_integers(table, coding, band, mask),
            None => {
                for (unit, bytes) in band.chunks_exact(self.unit_bytes()).enumerate() {
                    if !self.are_zeros(bytes) {
                        set(mask, unit);
                    }
                }
            }
        }
    }

    fn scan_integers(self, table: &Table, coding: Coding, bytes: &[u8], mask: &mut [u64]) {
        let each = unit_columns(self.layout) / GROUP;
        let groups = self.units * each;
        let prefetch = PrefetchChoice::DEFAULT;
        let band = Band { layout: self.layout, columns: groups * GROUP, bytes, prefetch };
        let mut panels = [[PanelGroup::ZERO; DEPTH]; 2];
        for first in (0..groups).step_by(DEPTH) {
            let count = DEPTH.min(groups - first);
            (table.matmul.decode)(band, first, count, &mut panels);
            let [low, high] = &panels;
            for (index, (low, high)) in low[..count].iter().zip(high).enumerate() {
                if ![low, high].into_iter().all(|group| adds_nothing(coding, group, self.zeros)) {
                    set(mask, (first + index) / each);
                }
            }
        }
    }

    /// Whether all floats of these bytes are zeros.
    fn are_zeros(self, bytes: &[u8]) -> bool {
        let sign = match self.zeros {
            Zeros::Any => 0x7f,
            Zeros::Positive => 0xff,
        };
        let width = if self.layout == Layout::F32 { 4 } else { 2 };
        bytes
            .iter()
            .enumerate()
            .all(|(at, byte)| byte & if at % width == width - 1 { sign } else { 0xff } == 0)
    }
}

/// The columns of a unit: those of the layout's own units, or of a group.
fn unit_columns(layout: Layout) -> usize {
    layout.unit().0.max(GROUP)
}

/// Whether what a group of integers adds to a sum is an exact zero, whatever its finite activations are. `scale · n` is
/// computed as a difference of `INTEGER_BIAS_FLOAT · scale`, which must be finite. A minimum is a product of its own,
/// which is rounded, so that it must be zero even where it cancels the codes.
fn adds_nothing(coding: Coding, group: &PanelGroup, zeros: Zeros) -> bool {
    let lines = group.codes.len() / coding.sums();
    (0..LANES).all(|lane| {
        (0..coding.sums()).all(|part| {
            let (scale, minimum) = (group.scales[part][lane], group.minimums[part][lane]);
            let mut codes = group.codes[part * lines..(part + 1) * lines]
                .iter()
                .flat_map(|line| &line[4 * lane..4 * lane + 4]);
            (!coding.minimums || minimum == 0.0)
                && (scale * INTEGER_BIAS_FLOAT).is_finite()
                && match zeros {
                    Zeros::Any => scale == 0.0 || codes.all(|code| *code == coding.zero),
                    Zeros::Positive => codes.all(|code| coding.value(*code, scale, minimum).to_bits() == 0),
                }
        })
    })
}

fn set(mask: &mut [u64], unit: usize) {
    mask[unit / WORD_BITS] |= 1 << (unit % WORD_BITS);
}

/// The units that are present in each band of a matrix, or of the matrices of experts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PresentUnits {
    grid: UnitGrid,
    /// The number of each unit that is present, band after band.
    units: Vec<u16>,
    /// For each band, and behind the last one, the units before it.
    starts: Vec<u32>,
}

impl PresentUnits {
    /// The units of masks, one after another for each band; `None` if all are present.
    pub fn of_masks(grid: UnitGrid, masks: &[u64]) -> Option<Arc<PresentUnits>> {
        let (mut units, mut starts) = (Vec::new(), vec![0]);
        for mask in masks.chunks_exact(grid.mask_words()) {
            let is_set = |unit: &usize| mask[unit / WORD_BITS] >> (unit % WORD_BITS) & 1 == 1;
            units.extend((0..grid.units).filter(is_set).map(|unit| unit as u16));
            starts.push(units.len() as u32);
        }
        (units.len() < grid.bands * grid.units).then(|| Arc::new(PresentUnits { grid, units, starts }))
    }

    /// Whether leaving out the other units is worth it.
    pub fn is_sparse(&self) -> bool {
        self.density() <= MOST_PRESENT
    }

    /// The share of units that are present.
    pub fn density(&self) -> f64 {
        self.units.len() as f64 / (self.grid.bands * self.grid.units) as f64
    }

    /// The masks that these units are of.
    pub fn masks(&self) -> Vec<u64> {
        let words = self.grid.mask_words();
        let mut masks = vec![0; self.grid.bands * words];
        for (band, mask) in masks.chunks_exact_mut(words).enumerate() {
            self.of_band(band).iter().for_each(|unit| set(mask, usize::from(*unit)));
        }
        masks
    }

    /// The units of a band.
    pub fn of_band(&self, band: usize) -> &[u16] {
        &self.units[self.starts[band] as usize..self.starts[band + 1] as usize]
    }

    /// The bytes of some bands.
    pub fn bytes(&self, bands: Range<usize>) -> Range<usize> {
        let byte = |band: usize| self.starts[band] as usize * self.grid.unit_bytes();
        byte(bands.start)..byte(bands.end)
    }

    /// The columns of a unit.
    pub fn unit_columns(&self) -> usize {
        unit_columns(self.grid.layout)
    }

    /// Moves the present units of whole bands, which begin at `from`, to `to` and behind; returns the end of the last.
    pub fn compact(&self, memory: &mut [u8], from: usize, mut to: usize) -> usize {
        let each = self.grid.unit_bytes();
        for band in 0..self.grid.bands {
            for unit in self.of_band(band) {
                let start = from + (band * self.grid.units + usize::from(*unit)) * each;
                memory.copy_within(start..start + each, to);
                to += each;
            }
        }
        to
    }
}

/// Where the bands of a matrix, or of the matrices of experts, begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BandPlaces {
    /// Each band has this number of bytes.
    Equal(usize),
    /// Bands have the units that are present.
    Present(Arc<PresentUnits>),
}

impl BandPlaces {
    /// The bytes of some bands.
    pub fn bytes(&self, bands: Range<usize>) -> Range<usize> {
        match self {
            BandPlaces::Equal(each) => bands.start * each..bands.end * each,
            BandPlaces::Present(present) => present.bytes(bands),
        }
    }
}

/// The packed bands of a weight.
#[derive(Debug)]
pub(crate) struct FilledWeight {
    pub bytes: SharedBytes,
    pub places: BandPlaces,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::tables;

    fn grid(layout: Layout, columns: usize, zeros: Zeros) -> UnitGrid {
        UnitGrid::of(layout, [1, 64, columns], zeros).unwrap()
    }

    #[test]
    fn units_are_present_that_have_a_value() {
        for table in tables() {
            for &layout in Layout::INTEGERS.iter().chain(&[Layout::Bf16, Layout::F16, Layout::F32]) {
                let grid = grid(layout, 768, Zeros::Any);
                let mut band = vec![0; layout.band_bytes(768).unwrap()];
                let mut mask = vec![0; grid.mask_words()];
                grid.scan(table, &band, &mut mask);
                assert_eq!(mask, [0], "{} {layout:?}", table.name);
                // Any bits but those of a zero, in the codes and in the scales.
                band[2 * grid.unit_bytes()..3 * grid.unit_bytes()].fill(0x35);
                grid.scan(table, &band, &mut mask);
                assert_eq!(mask, [4], "{} {layout:?}", table.name);
            }
        }
    }

    #[test]
    fn a_negative_zero_is_a_value_of_a_table() {
        let table = &tables()[0];
        let mut band = vec![0; Layout::Bf16.band_bytes(64).unwrap()];
        band[5] = 0x80;
        for (zeros, expected) in [(Zeros::Any, 0), (Zeros::Positive, 1)] {
            let mut mask = [0];
            grid(Layout::Bf16, 64, zeros).scan(table, &band, &mut mask);
            assert_eq!(mask, [expected]);
        }
    }

    /// Codes of zero under a scale whose product with the bias of integers is infinite, and a minimum that cancels.
    #[test]
    fn values_of_zero_that_change_sums_are_present() {
        let coding = Layout::Q4_1.coding().unwrap();
        let mut group = PanelGroup::ZERO;
        assert!(adds_nothing(coding, &group, Zeros::Any));
        (group.codes, group.scales, group.minimums) = ([[3; 64]; 8], [[1.0; 16]; 2], [[3.0; 16]; 2]);
        assert!(!adds_nothing(coding, &group, Zeros::Any));
        let coding = Layout::Mxfp4.coding().unwrap();
        let mut group = PanelGroup::ZERO;
        (group.codes, group.scales) = ([[coding.zero; 64]; 8], [[2.0_f32.powi(100); 16]; 2]);
        assert!(adds_nothing(coding, &group, Zeros::Any));
        group.scales = [[2.0_f32.powi(110); 16]; 2];
        assert!(!adds_nothing(coding, &group, Zeros::Any));
    }

    #[test]
    fn masks_are_those_of_their_units() {
        let grid = grid(Layout::Q4_0, 70 * GROUP, Zeros::Any);
        let masks = [5, 1 << 5, u64::MAX, 0];
        let present = PresentUnits::of_masks(grid, &masks).unwrap();
        assert_eq!((present.of_band(0), present.masks()), (&[0, 2, 69][..], masks.to_vec()));
        assert_eq!(present.bytes(1..2), 3 * 576..67 * 576);
        assert_eq!(PresentUnits::of_masks(grid, &[u64::MAX; 4]), None);
    }

    #[test]
    fn matrices_that_units_do_not_fill_have_none() {
        assert_eq!(UnitGrid::of(Layout::F32, [1, 32, 33], Zeros::Any), None);
        assert_eq!(UnitGrid::of(Layout::Mxfp4, [1, 32, 96], Zeros::Any), None);
        assert_eq!(UnitGrid::of(Layout::F32, [usize::MAX, 64, 64], Zeros::Any), None);
        assert_eq!(UnitGrid::of(Layout::F32, [1, 64, 32 << 17], Zeros::Any), None);
    }
}
