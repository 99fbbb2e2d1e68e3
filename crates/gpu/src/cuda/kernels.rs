//! The kernels for CUDA: in which module of PTX each is, under which name, and which there are.

use girih_tensor::{CodeKind, DType};

use crate::kernel::GpuKernel;
use crate::layout::{BandLayout, ScaleKind};

/// Kernels that are compiled together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CudaModule {
    Rows,
    Products,
    Attention,
}

/// A kernel of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CudaKernel {
    pub module: CudaModule,
    pub name: String,
    /// Threads of a block.
    pub threads: u32,
}

impl CudaModule {
    /// The name of its source.
    pub fn name(self) -> &'static str {
        match self {
            CudaModule::Rows => "rows.cu",
            CudaModule::Products => "products.cu",
            CudaModule::Attention => "attention.cu",
        }
    }

    /// Its PTX, which `scripts/cuda_ptx.py` makes.
    pub fn ptx(self) -> &'static str {
        match self {
            CudaModule::Rows => include_str!("../kernels/cuda/rows.ptx"),
            CudaModule::Products => include_str!("../kernels/cuda/products.ptx"),
            CudaModule::Attention => include_str!("../kernels/cuda/attention.ptx"),
        }
    }
}

/// The name of a layout of weights that the kernels know.
pub(crate) fn layout_name(layout: BandLayout) -> Option<&'static str> {
    match layout {
        BandLayout { codes: CodeKind::FourLess8, scales: ScaleKind::Half } => Some("q4_0"),
        BandLayout { codes: CodeKind::Byte, scales: ScaleKind::Halved } => Some("q6_k"),
        _ => None,
    }
}

/// The kernel for CUDA that has the numbers of another one; `None` if there is none.
pub(crate) fn cuda_kernel(kernel: GpuKernel) -> Option<CudaKernel> {
    let of =
        |module, name: &str, threads| Some(CudaKernel { module, name: format!("girih_{name}"), threads });
    let rows = |name: &str, threads| of(CudaModule::Rows, name, threads);
    let products = |name: &str, layout: BandLayout, tile: u32, threads| {
        let layout = layout_name(layout)?;
        of(CudaModule::Products, &format!("{name}_{layout}_{tile}"), threads)
    };
    match kernel {
        GpuKernel::Elements => rows("elements", 256),
        GpuKernel::Norm => rows("norm", 256),
        GpuKernel::Embed(layout) => rows(&format!("embed_{}", layout_name(layout)?), 256),
        GpuKernel::Round(_) => rows("round_rows", 256),
        GpuKernel::IntegerGemv(layout, shape) => products("gemv_int", layout, shape.rows, shape.teams * 32),
        GpuKernel::IntegerGemm(layout, each) => products("gemm_int", layout, each * 16, 128),
        GpuKernel::MatrixGemm(layout, _) => products("gemm_int", layout, 128, 128),
        GpuKernel::Write(DType::F16) => rows("write", 256),
        GpuKernel::Heads(DType::F16) => rows("heads", 128),
        GpuKernel::Attend(DType::F16) => of(CudaModule::Attention, "attend_f16", 256),
        GpuKernel::AttendRows(DType::F16) => of(CudaModule::Attention, "attend_rows_f16", 256),
        GpuKernel::Join => of(CudaModule::Attention, "join", 256),
        GpuKernel::Pick => rows("pick", 256),
        GpuKernel::Rope => rows("rope", 256),
        GpuKernel::Write(_)
        | GpuKernel::Heads(_)
        | GpuKernel::Attend(_)
        | GpuKernel::AttendRows(_)
        | GpuKernel::Gemv(..)
        | GpuKernel::ExpertGemv(_)
        | GpuKernel::Gemm(..)
        | GpuKernel::IntegerExpertGemv(..)
        | GpuKernel::Select(_)
        | GpuKernel::Route
        | GpuKernel::Experts
        | GpuKernel::Conv
        | GpuKernel::Scan
        | GpuKernel::Delta => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADERS: [&[u8]; 5] = [
        include_bytes!("../kernels/cuda/common.cuh"),
        include_bytes!("../kernels/cuda/math.cuh"),
        include_bytes!("../kernels/cuda/state.cuh"),
        include_bytes!("../kernels/cuda/codes.cuh"),
        include_bytes!("../kernels/cuda/rounding.cuh"),
    ];

    const SOURCES: [(CudaModule, &[u8]); 3] = [
        (CudaModule::Rows, include_bytes!("../kernels/cuda/rows.cu")),
        (CudaModule::Products, include_bytes!("../kernels/cuda/products.cu")),
        (CudaModule::Attention, include_bytes!("../kernels/cuda/attention.cu")),
    ];

    /// FNV-1a of 64 bits, as `digest` of `scripts/cuda_ptx.py`.
    fn digest(texts: &[&[u8]]) -> u64 {
        let bytes = texts.iter().copied().flatten();
        bytes.fold(0xcbf2_9ce4_8422_2325, |value, byte| {
            (value ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }

    #[test]
    fn the_ptx_is_that_of_the_sources() {
        for (module, source) in SOURCES {
            let texts = [&HEADERS[..], &[source]].concat();
            let head = format!("// source {:016x}, NVRTC 12.8.93, compute_80\n", digest(&texts));
            let name = module.name();
            assert!(module.ptx().starts_with(&head), "{name} has changed: run scripts/cuda_ptx.py");
        }
    }

    #[test]
    fn the_text_of_all_kernels_is_small() {
        let bytes: usize = SOURCES.iter().map(|(module, _)| module.ptx().len()).sum();
        assert!(bytes <= 450_000, "the program holds {bytes} bytes of PTX");
    }
}
