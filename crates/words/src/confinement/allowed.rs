//! What a confined process may do.

use std::path::PathBuf;

/// What a process may still do with files. Paths that do not exist count for nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Confinement {
    /// Files and folders that it may read.
    pub read: Vec<PathBuf>,
    /// Folders in which it may also create, change and remove files.
    pub write: Vec<PathBuf>,
    /// Devices that it may read, write and control, and folders of such.
    pub devices: Vec<PathBuf>,
    /// Programs that it may run, with the loaders that they need.
    pub run: Vec<PathBuf>,
    /// The TCP port to which it may connect, at any address, as the kernel does not look at addresses; see
    /// [`can_limit_connections`](super::can_limit_connections). `None` for no connections.
    pub connect: Option<u16>,
}
