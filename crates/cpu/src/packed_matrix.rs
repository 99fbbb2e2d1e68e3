//! A matrix of packed weights: its bands, and its numbers.

use std::ops::Range;

use girih_graph::{Error, Graph, Value, ValueId};
use girih_tensor::DType;

use crate::adapter_node::row_parts;
use crate::kernels::Table;
use crate::kernels::packed::{
    BAND, Band, Coding, DEPTH, FLOAT_DEPTH, GROUP, LANES, LINE, Layout, Panel, PanelGroup, bands,
};
use crate::kernels::prefetch::PrefetchChoice;
use crate::memory::SharedBytes;
use crate::present::{BandPlaces, FilledWeight, UnitGrid};
use crate::socket;

/// The matrices of a weight as they are packed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedShape {
    /// The number of matrices.
    pub experts: usize,
    /// The rows and columns of each, which are parts of the weight's rows.
    pub rows: usize,
    pub columns: usize,
    /// The number of parts of each of the weight's rows.
    pub row_parts: usize,
}

impl PackedShape {
    /// The shape of a weight of the graph.
    pub fn of(graph: &Graph, weight: ValueId) -> PackedShape {
        let (shape, row_parts) = (graph.value(weight).shape, row_parts(graph, weight));
        let (experts, rows) = match *shape.extents() {
            [experts, rows, _] => (experts.max(1), rows),
            _ => (1, shape.rows()),
        };
        PackedShape { experts, rows: rows * row_parts, columns: shape.columns() / row_parts, row_parts }
    }

    /// The units that a weight of this shape may leave out.
    pub fn grid(self, graph: &Graph, weight: ValueId) -> Option<UnitGrid> {
        let layout = Layout::of(graph.value(weight).dtype);
        UnitGrid::of_weight(graph, weight, layout, [self.experts, self.rows, self.columns])
    }

    /// The bytes of a band of this shape with all its units, and of all bands.
    ///
    /// # Errors
    /// If they exceed the address space.
    pub fn sizes(self, value: &Value) -> Result<(usize, usize), Error> {
        let band_bytes = Layout::of(value.dtype).band_bytes(self.columns);
        let count = bands(self.rows).checked_mul(self.experts);
        let sizes = band_bytes.and_then(|band| Some((band, band.checked_mul(count?)?)));
        sizes.ok_or_else(|| too_large(value))
    }
}

/// A matrix of weights, `rows` outputs by `columns` inputs, in bands.
#[derive(Debug)]
pub(crate) struct PackedMatrix {
    pub layout: Layout,
    pub rows: usize,
    pub columns: usize,
    /// The number of these rows that are parts of one row of the weight.
    pub row_parts: usize,
    /// Those of its bands.
    bytes: SharedBytes,
    /// Copies of these bytes, one for each socket; none if sockets share them.
    copies: Vec<SharedBytes>,
    places: BandPlaces,
    /// The number of its first band, if it is the matrix of an expert.
    first_band: usize,
    prefetch: PrefetchChoice,
}

impl PackedMatrix {
    /// Makes the matrices of a weight, one for each expert, of packed bands.
    pub fn of_weight(
        name: &str,
        layout: Layout,
        shape: PackedShape,
        FilledWeight { bytes, places }: &FilledWeight,
    ) -> Vec<PackedMatrix> {
        let PackedShape { experts, rows, columns, row_parts } = shape;
        let (prefetch, each) = (PrefetchChoice::DEFAULT, bands(rows));
        let all = places.bytes(0..experts * each);
        assert_eq!(bytes.len(), all.len(), "'{name}' has the bytes of its bands");
        let matrix = |expert: usize| PackedMatrix {
            layout,
            rows,
            columns,
            row_parts,
            bytes: bytes.sub_part(places.bytes(expert * each..(expert + 1) * each)),
            copies: Vec::new(),
            places: places.clone(),
            first_band: expert * each,
            prefetch,
        };
        (0..experts).map(matrix).collect()
    }

    /// The bytes of the whole matrix.
    pub fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Returns one band: of a sparse matrix, the columns of its present units only.
    pub fn band(&self, index: usize) -> Band<'_> {
        let columns = self.units(index).map_or(self.columns, |(units, each)| units.len() * each);
        let near = if self.copies.is_empty() { 0 } else { socket::of_this_thread() };
        let bytes = &self.bytes_on(near)[self.bytes_of(index..index + 1)];
        Band { layout: self.layout, columns, bytes, prefetch: self.prefetch }
    }

    /// Some columns of a band as [`PackedMatrix::band`] returns it, from the start of a group on, for a prefetch:
    /// nothing behind the last band.
    pub fn columns_to_prefetch(&self, band: usize, columns: Range<usize>) -> &[u8] {
        if band >= bands(self.rows) {
            return &[];
        }
        let Band { bytes, columns: all, .. } = self.band(band);
        let at = |column: usize| bytes.len() * column.min(all) / all.max(1);
        &bytes[at(columns.start)..at(columns.end)]
    }

    /// The bytes of some of its bands among its own.
    fn bytes_of(&self, bands: Range<usize>) -> Range<usize> {
        let own = |bands: Range<usize>| {
            self.places.bytes(self.first_band + bands.start..self.first_band + bands.end)
        };
        let (start, range) = (own(0..0).start, own(bands));
        range.start - start..range.end - start
    }

    /// The numbers of the units that are present in a band of a sparse matrix, and the columns of each.
    pub fn units(&self, band: usize) -> Option<(&[u16], usize)> {
        match &self.places {
            BandPlaces::Equal(_) => None,
            BandPlaces::Present(present) => {
                Some((present.of_band(self.first_band + band), present.unit_columns()))
            }
        }
    }

    /// Whether bands have present units only.
    pub fn is_sparse(&self) -> bool {
        matches!(self.places, BandPlaces::Present(_))
    }

    /// The bytes of all its units, present or not.
    pub fn dense_size(&self) -> u64 {
        let band = self.layout.band_bytes(self.columns).expect("it was packed");
        (band * bands(self.rows)) as u64
    }

    /// How far ahead kernels prefetch it.
    pub fn prefetch(&self) -> PrefetchChoice {
        self.prefetch
    }

    /// Sets how far ahead kernels prefetch it.
    pub fn set_prefetch(&mut self, choice: PrefetchChoice) {
        self.prefetch = choice;
    }

    /// The bytes of all bands, as the threads of a socket read them.
    pub fn bytes_on(&self, socket: usize) -> &[u8] {
        self.copies.get(socket).unwrap_or(&self.bytes)
    }

    /// Lets the threads of each socket read its copy of the weight that this matrix is a part of.
    pub fn set_copies(&mut self, copies: &[SharedBytes]) {
        let all = self.places.bytes(self.first_band..self.first_band + bands(self.rows));
        self.copies = copies.iter().map(|copy| copy.sub_part(all.clone())).collect();
    }

    /// The copies of its bytes, one for each socket; none if sockets share them.
    pub fn copies(&self) -> &[SharedBytes] {
        &self.copies
    }

    /// The bytes of a band, on average if it is sparse.
    pub fn mean_band_bytes(&self) -> usize {
        self.bytes.len() / bands(self.rows).max(1)
    }

    /// Whether its values are packed as floats.
    pub fn is_float(&self) -> bool {
        matches!(self.layout, Layout::Bf16 | Layout::F16 | Layout::F32)
    }

    /// Decodes some columns of a band as [`PackedMatrix::band`] returns it, up to [`FLOAT_DEPTH`] from the start of a
    /// group on, as floats to `lines`.
    pub fn decoded<'a>(
        &self,
        table: &Table,
        band: usize,
        columns: Range<usize>,
        lines: &'a mut [u8; FLOAT_DEPTH * 2 * LINE],
    ) -> Band<'a> {
        let (first, columns) = (columns.start, columns.len());
        let mut put = |column: usize, row: usize, value: f32| {
            lines[(column * BAND + row) * 4..][..4].copy_from_slice(&value.to_le_bytes());
        };
        match (self.layout, self.layout.coding()) {
            (_, Some(coding)) => {
                let mut panels = [[PanelGroup::ZERO; DEPTH]; 2];
                (table.matmul.decode)(self.band(band), first / GROUP, columns.div_ceil(GROUP), &mut panels);
                for (row, column) in (0..BAND).flat_map(|row| (0..columns).map(move |column| (row, column))) {
                    put(column, row, number(coding, &panels, row, column));
                }
            }
            (Layout::Stored(dtype), _) => self.decoded_stored(dtype, band, first, columns, put),
            _ => unreachable!("floats are multiplied as they are packed"),
        }
        let prefetch = PrefetchChoice::NONE; // L1 holds what was just decoded
        Band { layout: Layout::F32, columns, bytes: &lines[..columns * 2 * LINE], prefetch }
    }

    /// Calls `put` with the numbers of some columns of a band that is packed as stored in the file.
    fn decoded_stored(
        &self,
        dtype: DType,
        band: usize,
        first: usize,
        columns: usize,
        mut put: impl FnMut(usize, usize, f32),
    ) {
        let mut values = [0.0; FLOAT_DEPTH];
        let values = &mut values[..columns];
        for (row, bytes) in self.stored_rows(dtype, band).enumerate() {
            dtype.unpack(&bytes[first * dtype.block_bytes()..][..columns * dtype.block_bytes()], values);
            values.iter().enumerate().for_each(|(column, value)| put(column, row, *value));
        }
    }

    /// The rows of a band that is packed as stored in the file.
    fn stored_rows(&self, dtype: DType, band: usize) -> impl Iterator<Item = &[u8]> {
        self.band(band).bytes.chunks_exact((self.columns * dtype.block_bytes()).max(1))
    }

    /// Decodes one row to `values`; units that a sparse matrix leaves out are zeros.
    pub fn row(&self, index: usize, table: &Table, values: &mut [f32]) {
        let (band, row) = (index / BAND, index % BAND);
        let Some((units, each)) = self.units(band) else {
            return self.present_row(band, row, table, values, 0);
        };
        values.fill(0.0);
        for (at, unit) in units.iter().enumerate() {
            let values = &mut values[usize::from(*unit) * each..][..each];
            self.present_row(band, row, table, values, at * each);
        }
    }

    /// Decodes the values of a row of a band from column `first` of its present ones on.
    fn present_row(&self, number: usize, row: usize, table: &Table, values: &mut [f32], first: usize) {
        let (band, (unit, bytes)) = (self.band(number), self.layout.unit());
        match (self.layout, self.layout.coding()) {
            (_, Some(coding)) => {
                let mut panels = [[PanelGroup::ZERO; DEPTH]; 2];
                for (block, values) in values.chunks_mut(DEPTH * GROUP).enumerate() {
                    let groups = values.len().div_ceil(GROUP);
                    (table.matmul.decode)(band, first / GROUP + block * DEPTH, groups, &mut panels);
                    for (column, value) in values.iter_mut().enumerate() {
                        *value = self::number(coding, &panels, row, column);
                    }
                }
            }
            (Layout::Stored(dtype), _) => {
                let bytes = self.stored_rows(dtype, number).nth(row);
                dtype.unpack(bytes.expect("the row is in its band"), values);
            }
            _ => {
                for (column, value) in (first..).zip(values) {
                    *value = self.layout.float(&band.bytes[column / unit * bytes..], column % unit, row);
                }
            }
        }
    }
}

fn too_large(value: &Value) -> Error {
    Error::new(format!("the weight '{}' exceeds the address space", value.name))
}

/// The number in row `row` and column `column` of decoded groups.
fn number(coding: Coding, panels: &[Panel; 2], row: usize, column: usize) -> f32 {
    let group = &panels[row / LANES][column / GROUP];
    let (lane, column) = (row % LANES, column % GROUP);
    let part = if coding.halves { column / (GROUP / 2) } else { 0 };
    let code = group.codes[column / 4][4 * lane + column % 4];
    coding.value(code, group.scales[part][lane], group.minimums[part][lane])
}
