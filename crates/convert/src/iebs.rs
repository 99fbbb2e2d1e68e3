//! Converts a matrix of f32 to a file of its blocks with values: from a file of nothing but numbers, row by row, or from another
//! file of blocks.

use std::path::Path;

use girih_file::sparse_blocks::SparseLayout;
use girih_file::{ByteSource, Container, ContainerWriter, FileLimits, IEBS_VALUES, ReadAt as _, TensorInfo};
use girih_tensor::{DType, Error, Result, Shape};

use super::bands::check_finite;
use super::new_folder::check_is_free;
use super::prune::Pruning;

/// How a matrix is converted.
#[derive(Clone, Copy, Debug)]
pub struct IebsOptions {
    /// The rows of a file of numbers; its length says how many columns it has.
    pub rows: Option<usize>,
    /// The rows and columns of a block.
    pub block: [usize; 2],
}

impl IebsOptions {
    /// The options with a block such as `32x32`.
    ///
    /// # Errors
    /// When it is none.
    pub fn new(rows: Option<usize>, block: &str) -> Result<IebsOptions> {
        Ok(IebsOptions { rows, block: Pruning::parse_block(block)? })
    }
}

/// A matrix that was written.
#[derive(Clone, Copy, Debug)]
pub struct WrittenIebs {
    /// Its shape.
    pub shape: Shape,
    /// The number of stored blocks.
    pub blocks: usize,
    /// The share of blocks that are stored.
    pub density: f64,
}

/// A matrix of f32.
enum MatrixSource<'a> {
    Numbers(ByteSource, Shape, &'a Path),
    Blocks(Container, TensorInfo),
}

impl MatrixSource<'_> {
    fn open(path: &Path, rows: Option<usize>) -> Result<MatrixSource<'_>> {
        let named = |error: Error| error.of(path.display());
        let is_iebs = path.extension().is_some_and(|extension| extension == "iebs");
        match (is_iebs, rows) {
            (true, None) => {
                let container = Container::open(path, &FileLimits::DEFAULT)?;
                let info = container.tensors().values().next().expect("such a file is a matrix").clone();
                Ok(MatrixSource::Blocks(container, info))
            }
            (true, Some(_)) => Err(named(Error::new("states its rows itself; omit --rows"))),
            (false, None) => Err(named(Error::new("is read as f32, row by row; state its rows with --rows"))),
            (false, Some(rows)) => {
                let source = ByteSource::open(path).map_err(named)?;
                let shape = shape_of_numbers(source.length(), rows).map_err(named)?;
                Ok(MatrixSource::Numbers(source, shape, path))
            }
        }
    }

    fn shape(&self) -> Shape {
        match self {
            MatrixSource::Numbers(_, shape, _) => *shape,
            MatrixSource::Blocks(_, info) => info.shape,
        }
    }

    /// Calls `each` with each row of blocks.
    fn each_band(&self, layout: &SparseLayout, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let all = DType::F32.bytes(&self.shape())?;
        let mut band = vec![0; layout.band_bytes()];
        for start in (0..all).step_by(band.len()) {
            let band = &mut band[..layout.band_bytes().min(all - start)];
            match self {
                MatrixSource::Numbers(source, _, path) => {
                    source.read_at(start as u64, band).map_err(|error| error.of(path.display()))?;
                }
                MatrixSource::Blocks(container, info) => container.read(info, start as u64, band)?,
            }
            each(band)?;
        }
        Ok(())
    }

    /// Checks that the file did not change since it was opened.
    fn check_unchanged(&self) -> Result<()> {
        match self {
            MatrixSource::Numbers(source, _, path) => {
                source.check_unchanged().map_err(|error| error.of(path.display()))
            }
            MatrixSource::Blocks(container, _) => container.check_unchanged(),
        }
    }
}

/// The shape of a file of this many bytes.
fn shape_of_numbers(bytes: u64, rows: usize) -> Result<Shape> {
    let columns = (bytes / 4).checked_div(rows as u64).filter(|columns| *columns > 0);
    match columns.and_then(|columns| usize::try_from(columns).ok()) {
        Some(columns) if bytes == 4 * columns as u64 * rows as u64 => Ok(Shape::matrix(rows, columns)),
        _ => Err(Error::new(format!("has {bytes} bytes, which are no {rows} equal rows of f32"))),
    }
}

/// Writes the blocks of a matrix that have other numbers than zeros; a block that holds only the bytes of 0 is left out.
///
/// # Errors
/// When `out` exists, a file cannot be read or written, the input changes meanwhile, or a number is not finite.
pub fn write_iebs(input: &Path, out: &Path, options: &IebsOptions) -> Result<WrittenIebs> {
    check_is_free(out)?;
    let named = |error: Error| error.of(input.display());
    let source = MatrixSource::open(input, options.rows)?;
    let layout = SparseLayout::new(source.shape(), DType::F32, options.block).map_err(named)?;
    let mut present = Vec::new();
    let mut find = |band: &[u8]| -> Result<()> {
        let mut values = vec![0.0; band.len() / size_of::<f32>()];
        DType::F32.unpack(band, &mut values);
        check_finite(&values).map_err(named)?;
        present.push(layout.present(band));
        Ok(())
    };
    source.each_band(&layout, &mut find)?;
    let mut writer = ContainerWriter::iebs(out, &layout, &present)?;
    let mut rows = present.iter();
    let mut append = |band: &[u8]| {
        let columns = rows.next().expect("both passes have the same rows of blocks");
        writer.append(IEBS_VALUES, &layout.blocks(band, columns))
    };
    source.each_band(&layout, &mut append)?;
    source.check_unchanged()?;
    writer.finish()?;
    let (blocks, [height, width]) = (present.iter().map(Vec::len).sum(), options.block);
    let shape = source.shape();
    let places = shape.rows().div_ceil(height) * shape.columns().div_ceil(width);
    Ok(WrittenIebs { shape, blocks, density: blocks as f64 / places as f64 })
}
