//! The instructions of AMX's tiles that kernels use: the processor's, and an emulator of them for tests.
//!
//! A tile is a register of up to 16 rows of up to 64 bytes. Their semantics are those of Intel's Architecture
//! Instruction Set Extensions Programming Reference (319433), chapter 3, "Intel AMX instruction set".

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};

/// The tiles of a processor.
pub(in crate::kernels) const TILES: usize = 8;

/// The rows of a tile.
pub(in crate::kernels) const TILE_ROWS: usize = 16;

/// The bytes of a row of a tile.
pub(in crate::kernels) const TILE_ROW_BYTES: usize = 64;

/// The rows of a tile that are used, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::kernels) struct TileShape {
    /// The rows, at most [`TILE_ROWS`].
    pub rows: usize,
    /// The bytes of a row, at most [`TILE_ROW_BYTES`] and a multiple of 4.
    pub bytes: usize,
}

/// Instructions on tiles. A tile is named by its number, which the instruction holds.
pub(in crate::kernels) trait TileInstructions: Sized {
    /// What shows that the instructions may be used.
    type Permission: Copy;

    /// Sets the shapes of all tiles (`ldtilecfg`). When the value is dropped, the tiles are given back.
    ///
    /// # Safety
    /// The thread has no other value of this type, and the value stays on the thread: tiles are those of a thread.
    unsafe fn configured(permission: Self::Permission, shapes: [TileShape; TILES]) -> Self;
    /// Reads a tile, whose rows begin `stride` bytes apart (`tileloadd`).
    ///
    /// Panics when `bytes` is shorter than the tile.
    fn load<const T: usize>(&mut self, bytes: &[u8], stride: usize);
    /// Sets a tile to zero (`tilezero`).
    fn zero<const T: usize>(&mut self);
    /// Adds to the 32-bit integers of `SUM` the products of `A`, signed bytes, with `B`, bytes without a sign: to
    /// `SUM[m][n]` the sum over `k` and `i` in 0..4 of `A[m][4k + i] · B[k][4n + i]` (`tdpbsud`).
    fn dot<const SUM: usize, const A: usize, const B: usize>(&mut self);
    /// Adds to the `f32` of `SUM` the products of pairs of bf16 numbers (`tdpbf16ps`): to `SUM[m][n]` the sum of
    /// `Σ A[m][2k] · B[k][2n]` and `Σ A[m][2k + 1] · B[k][2n + 1]`. Both begin with zero and have a fused
    /// multiply-add for each `k`. All additions round to the nearest, subnormal numbers are zeros.
    fn dot_bf16<const SUM: usize, const A: usize, const B: usize>(&mut self);
    /// Writes a tile, whose rows begin 64 bytes apart (`tilestored`).
    ///
    /// Panics when there are fewer rows in `rows` than in the tile.
    fn store<const T: usize>(&mut self, rows: &mut [[u8; TILE_ROW_BYTES]]);
}

/// Panics when bytes from which rows are read `stride` bytes apart are shorter than a tile.
#[inline(always)]
fn check_length(bytes: &[u8], stride: usize, shape: TileShape) {
    let end = shape.rows.saturating_sub(1).saturating_mul(stride).saturating_add(shape.bytes);
    assert!(end <= bytes.len(), "enough bytes for a tile");
}

/// Proof that the processor has AMX for integers and bf16 numbers, and that the system lets this process use it.
#[derive(Clone, Copy, Debug)]
pub(in crate::kernels) struct TilePermission(());

impl TilePermission {
    /// Asks the processor, then the system. The system's permission counts for all threads of the process, and enlarges
    /// what it saves of those that use tiles.
    pub fn request() -> Option<TilePermission> {
        (has_tiles() && system_permits()).then_some(TilePermission(()))
    }
}

/// Whether the processor has tiles and multiplies bytes and bf16 numbers by them, and the system saves them (Intel SDM 1, 18.3).
fn has_tiles() -> bool {
    const OSXSAVE: u32 = 1 << 27; // leaf 1, ecx
    const AMX: u32 = 1 << 22 | 1 << 24 | 1 << 25; // leaf 7, edx: AMX-BF16, AMX-TILE and AMX-INT8
    const TILE_STATE: u32 = 1 << 17 | 1 << 18; // XCR0: the configuration and the data
    if __cpuid(0).eax < 7 || __cpuid(1).ecx & OSXSAVE == 0 {
        return false;
    }
    let (lower, _upper): (u32, u32);
    // SAFETY: the processor has reported that the system has enabled `xgetbv`, which touches no memory.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") lower, out("edx") _upper, options(nomem, nostack)) };
    __cpuid_count(7, 0).edx & AMX == AMX && lower & TILE_STATE == TILE_STATE
}

/// Asks Linux for the use of tiles (Documentation/arch/x86/xstate.rst).
#[cfg(target_os = "linux")]
fn system_permits() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: this code of `arch_prctl` takes a number, and neither reads nor writes memory of the process.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

/// Other systems have no such call.
#[cfg(not(target_os = "linux"))]
fn system_permits() -> bool {
    false
}

/// The processor's tiles, from their configuration to their release.
#[derive(Debug)]
pub(in crate::kernels) struct ProcessorTiles {
    shapes: [TileShape; TILES],
}

/// What `ldtilecfg` reads: of palette 1 the bytes of the rows of each tile, and their number.
#[repr(C, align(64))]
struct TileConfiguration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes: [u16; 16],
    rows: [u8; 16],
}

impl TileInstructions for ProcessorTiles {
    type Permission = TilePermission;

    #[inline(always)]
    unsafe fn configured(_: TilePermission, shapes: [TileShape; TILES]) -> ProcessorTiles {
        let mut configuration =
            TileConfiguration { palette: 1, start_row: 0, reserved: [0; 14], bytes: [0; 16], rows: [0; 16] };
        for (tile, shape) in shapes.iter().enumerate() {
            configuration.bytes[tile] = shape.bytes as u16;
            configuration.rows[tile] = shape.rows as u8;
        }
        // SAFETY: the permission exists only where the processor and the system permit tiles; 64 bytes are read. The
        // compiler itself uses no tiles.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const configuration, options(readonly, nostack)) };
        ProcessorTiles { shapes }
    }

    #[inline(always)]
    fn load<const T: usize>(&mut self, bytes: &[u8], stride: usize) {
        check_length(bytes, stride, self.shapes[T]);
        // SAFETY: tiles are permitted, as `self` exists; the thread's tiles have the shapes of `self`, with which all
        // rows lie within the slice, as was checked.
        unsafe {
            asm!(
                "tileloadd tmm{tile}, [{start} + {stride} * 1]",
                tile = const T,
                start = in(reg) bytes.as_ptr(),
                stride = in(reg) stride,
                options(readonly, nostack),
            );
        }
    }

    #[inline(always)]
    fn zero<const T: usize>(&mut self) {
        // SAFETY: tiles are permitted, as `self` exists.
        unsafe { asm!("tilezero tmm{tile}", tile = const T, options(nomem, nostack)) };
    }

    #[inline(always)]
    fn dot<const SUM: usize, const A: usize, const B: usize>(&mut self) {
        const { assert!(SUM != A && SUM != B && A != B, "the instruction takes three tiles") };
        // SAFETY: tiles are permitted, as `self` exists. Shapes that do not fit each other are a fault of the
        // processor, which ends the process and touches no memory.
        unsafe {
            asm!(
                "tdpbsud tmm{sum}, tmm{a}, tmm{b}",
                sum = const SUM,
                a = const A,
                b = const B,
                options(nomem, nostack),
            );
        }
    }

    #[inline(always)]
    fn dot_bf16<const SUM: usize, const A: usize, const B: usize>(&mut self) {
        const { assert!(SUM != A && SUM != B && A != B, "the instruction takes three tiles") };
        // SAFETY: as above.
        unsafe {
            asm!(
                "tdpbf16ps tmm{sum}, tmm{a}, tmm{b}",
                sum = const SUM,
                a = const A,
                b = const B,
                options(nomem, nostack),
            );
        }
    }

    #[inline(always)]
    fn store<const T: usize>(&mut self, rows: &mut [[u8; TILE_ROW_BYTES]]) {
        assert!(self.shapes[T].rows <= rows.len(), "enough rows for a tile");
        // SAFETY: tiles are permitted, as `self` exists; the thread's tiles have the shapes of `self`, with which all
        // rows lie within the slice, as was checked.
        unsafe {
            asm!(
                "tilestored [{start} + {stride} * 1], tmm{tile}",
                tile = const T,
                start = in(reg) rows.as_mut_ptr(),
                stride = in(reg) TILE_ROW_BYTES,
                options(nostack),
            );
        }
    }
}

impl Drop for ProcessorTiles {
    /// The system does not save tiles that are released.
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: tiles are permitted, as `self` exists; the instruction touches no memory.
        unsafe { asm!("tilerelease", options(nomem, nostack)) };
    }
}

/// Tiles in plain code, with the faults of the instructions as panics.
#[cfg(test)]
pub(in crate::kernels) struct EmulatedTiles {
    shapes: [TileShape; TILES],
    tiles: [[[u8; TILE_ROW_BYTES]; TILE_ROWS]; TILES],
}

/// A number as `tdpbf16ps` reads and writes it: a zero of its sign if it is subnormal.
#[cfg(test)]
pub(in crate::kernels) fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0_f32.copysign(x) } else { x }
}

#[cfg(test)]
impl EmulatedTiles {
    /// The shapes of the sums and of the second factor, if the three tiles of a product fit each other.
    fn checked(&self, tiles: [usize; 3]) -> (TileShape, TileShape) {
        let [sum, a, b] = tiles.map(|tile| self.shapes[tile]);
        assert!(tiles[0] != tiles[1] && tiles[0] != tiles[2] && tiles[1] != tiles[2], "three tiles");
        assert!([sum, a, b].iter().all(|shape| shape.bytes.is_multiple_of(4) && shape.rows > 0));
        assert_eq!(
            (sum.rows, sum.bytes, a.bytes),
            (a.rows, b.bytes, 4 * b.rows),
            "shapes that fit each other"
        );
        (sum, b)
    }
}

#[cfg(test)]
impl TileInstructions for EmulatedTiles {
    type Permission = ();

    unsafe fn configured(_: (), shapes: [TileShape; TILES]) -> EmulatedTiles {
        for TileShape { rows, bytes } in shapes {
            assert!(rows <= TILE_ROWS && bytes <= TILE_ROW_BYTES, "{rows} rows of {bytes} bytes");
            assert_eq!(rows == 0, bytes == 0, "a tile has rows and bytes or neither");
        }
        EmulatedTiles { shapes, tiles: [[[0; TILE_ROW_BYTES]; TILE_ROWS]; TILES] }
    }

    fn load<const T: usize>(&mut self, bytes: &[u8], stride: usize) {
        let shape = self.shapes[T];
        check_length(bytes, stride, shape);
        self.zero::<T>();
        for (row, to) in self.tiles[T][..shape.rows].iter_mut().enumerate() {
            to[..shape.bytes].copy_from_slice(&bytes[row * stride..][..shape.bytes]);
        }
    }

    fn zero<const T: usize>(&mut self) {
        assert!(self.shapes[T].rows > 0, "tile {T} is not configured");
        self.tiles[T] = [[0; TILE_ROW_BYTES]; TILE_ROWS];
    }

    fn dot<const SUM: usize, const A: usize, const B: usize>(&mut self) {
        let (sum, b) = self.checked([SUM, A, B]);
        for m in 0..sum.rows {
            for n in 0..sum.bytes / 4 {
                let products = (0..b.rows).flat_map(|k| (0..4).map(move |i| (k, i))).map(|(k, i)| {
                    i32::from(self.tiles[A][m][4 * k + i] as i8) * i32::from(self.tiles[B][k][4 * n + i])
                });
                let added: i32 = products.sum();
                let to = self.tiles[SUM][m][4 * n..].first_chunk_mut().expect("four bytes of a row");
                *to = i32::from_le_bytes(*to).wrapping_add(added).to_le_bytes();
            }
        }
    }

    fn dot_bf16<const SUM: usize, const A: usize, const B: usize>(&mut self) {
        let (sum, b) = self.checked([SUM, A, B]);
        let number = |row: &[u8; TILE_ROW_BYTES], at: usize| {
            flushed(f32::from_le_bytes([0, 0, row[2 * at], row[2 * at + 1]]))
        };
        for (m, n) in (0..sum.rows).flat_map(|m| (0..sum.bytes / 4).map(move |n| (m, n))) {
            let mut parts = [0.0_f32; 2];
            for k in 0..b.rows {
                for (i, part) in parts.iter_mut().enumerate() {
                    let (a, b) = (number(&self.tiles[A][m], 2 * k + i), number(&self.tiles[B][k], 2 * n + i));
                    *part = flushed(a.mul_add(b, *part));
                }
            }
            let to = self.tiles[SUM][m][4 * n..].first_chunk_mut().expect("four bytes of a row");
            *to = flushed(flushed(f32::from_le_bytes(*to)) + flushed(parts[0] + parts[1])).to_le_bytes();
        }
    }

    fn store<const T: usize>(&mut self, rows: &mut [[u8; TILE_ROW_BYTES]]) {
        let shape = self.shapes[T];
        for (to, from) in rows[..shape.rows].iter_mut().zip(&self.tiles[T]) {
            to[..shape.bytes].copy_from_slice(&from[..shape.bytes]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `[1 −2 3 −4] · [1 2 3 255]` and `[0 0 0 1] · …`, added twice to 0.
    #[test]
    fn products_are_those_of_the_manual() {
        let shape = |rows, bytes| TileShape { rows, bytes };
        let unused = TileShape::default();
        let shapes = [shape(2, 4), shape(1, 4), shape(2, 4), unused, unused, unused, unused, unused];
        // SAFETY: it is the only value of this thread, which it does not leave.
        let mut tiles = unsafe { EmulatedTiles::configured((), shapes) };
        tiles.load::<0>(&[1, 254, 3, 252, 99, 0, 0, 0, 1], 5);
        tiles.load::<1>(&[1, 2, 3, 255], 4);
        tiles.zero::<2>();
        let mut rows = [[7; TILE_ROW_BYTES]; 2];
        for _ in 0..2 {
            tiles.dot::<2, 0, 1>();
        }
        tiles.store::<2>(&mut rows);
        let integer = |row: &[u8; TILE_ROW_BYTES]| i32::from_le_bytes(*row.first_chunk().unwrap());
        assert_eq!(rows.each_ref().map(integer), [2 * (1 - 4 + 9 - 1020), 2 * 255]);
        assert_eq!(rows[0][4], 7, "what is behind the tile stays");
    }

    /// Where the processor has tiles, it does what the emulator does.
    #[test]
    fn the_processor_agrees_with_the_emulator() {
        let Some(permission) = TilePermission::request() else {
            eprintln!("skipped: this processor has no AMX, or the system does not permit it");
            return;
        };
        let mut random = girih_tensor::Random(11);
        let mut shapes = [TileShape::default(); TILES];
        shapes[0] = TileShape { rows: 12, bytes: 32 };
        shapes[1] = TileShape { rows: 8, bytes: 64 };
        shapes[2] = TileShape { rows: 12, bytes: 64 };
        let bytes = random.bytes(16 * 64);
        fn stored<T: TileInstructions>(
            permission: T::Permission,
            shapes: [TileShape; TILES],
            bytes: &[u8],
        ) -> [[u8; 64]; 16] {
            // SAFETY: it is the only value of this thread, which it does not leave.
            let mut tiles = unsafe { T::configured(permission, shapes) };
            tiles.load::<0>(bytes, 40);
            tiles.load::<1>(&bytes[64..], 64);
            tiles.load::<2>(bytes, 64);
            tiles.dot::<2, 0, 1>();
            tiles.dot_bf16::<2, 0, 1>();
            let mut rows = [[0; 64]; 16];
            tiles.store::<2>(&mut rows);
            rows
        }
        let seen = stored::<ProcessorTiles>(permission, shapes, &bytes);
        assert_eq!(seen, stored::<EmulatedTiles>((), shapes, &bytes));
    }

    #[test]
    #[should_panic(expected = "shapes that fit each other")]
    fn shapes_that_do_not_fit_are_a_fault() {
        // SAFETY: it is the only value of this thread, which it does not leave.
        let mut tiles = unsafe { EmulatedTiles::configured((), [TileShape { rows: 2, bytes: 12 }; TILES]) };
        tiles.dot::<0, 1, 2>();
    }
}
