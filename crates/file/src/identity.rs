//! The identity of a file, without reading it. For a file in the Hugging Face cache it is
//! the name of its blob, which is the digest of its bytes; for any other file, its device,
//! inode, size and times. A change that updates none of these is not noticed.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The number of digits in the names of blobs: SHA-1 of small files, SHA-256 of large ones.
const BLOB_DIGITS: [usize; 2] = [40, 64];

/// The identity of a file that was opened at `path`, in one line.
pub(super) fn of(file: &File, path: &Path) -> Option<String> {
    let status = file.metadata().ok()?;
    let size = status.len();
    Some(match blob(&status, path) {
        Some(digest) => format!("blob {digest} of {size} bytes"),
        None => format!(
            "device {} inode {} of {size} bytes, modified {}.{:09}, changed {}.{:09}",
            status.dev(),
            status.ino(),
            status.mtime(),
            status.mtime_nsec(),
            status.ctime(),
            status.ctime_nsec()
        ),
    })
}

/// The digest that names the file in the Hugging Face cache, if it is a blob there.
fn blob(status: &Metadata, path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let name = path.file_name()?.to_str()?;
    let is_digest = BLOB_DIGITS.contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_blob = is_digest && path.parent()?.file_name()? == "blobs";
    // The link may have been redirected since the file was opened.
    let now = path.metadata().ok()?;
    let is_same = (now.dev(), now.ino()) == (status.dev(), status.ino());
    (is_blob && is_same).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn identity(path: &Path) -> String {
        of(&File::open(path).unwrap(), path).unwrap()
    }

    #[test]
    fn a_blob_is_identified_by_its_digest_in_every_cache() {
        let root = std::env::temp_dir().join(format!("girih-identity-blob-{}", std::process::id()));
        let digest = "ab".repeat(32);
        for cache in ["a", "b"] {
            let (blobs, snapshot) = (root.join(cache).join("blobs"), root.join(cache).join("snapshot"));
            fs::create_dir_all(&blobs).unwrap();
            fs::create_dir_all(&snapshot).unwrap();
            fs::write(blobs.join(&digest), "numbers").unwrap();
            symlink(blobs.join(&digest), snapshot.join("model.gguf")).unwrap();
        }
        let [a, b] = ["a", "b"].map(|cache| identity(&root.join(cache).join("snapshot/model.gguf")));
        assert_eq!((&a, &b), (&format!("blob {digest} of 7 bytes"), &a));
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn other_files_are_identified_by_inode_size_and_times() {
        let root = std::env::temp_dir().join(format!("girih-identity-file-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let (path, other) = (root.join("model.gguf"), root.join("other.gguf"));
        fs::write(&path, "numbers").unwrap();
        fs::write(&other, "numbers").unwrap();
        let first = identity(&path);
        assert!(first.starts_with("device ") && first.contains(" of 7 bytes"), "{first}");
        assert_eq!(identity(&path), first);
        assert_ne!(identity(&other), first);
        // The same size and modification time.
        let time = fs::metadata(&path).unwrap().modified().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        fs::write(&path, "Numbers").unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        assert_ne!(identity(&path), first);
        fs::remove_dir_all(&root).unwrap();
    }
}
