//! CUDA's driver API: what is looked up in the driver's library, the driver on top of it, and the kernels in PTX.

pub(crate) mod driver;
pub(crate) mod kernels;
pub(crate) mod library;
pub(crate) mod refuse;
