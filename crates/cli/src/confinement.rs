//! The files that a server needs: those of its models, its caches, and this program for chat templates.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use girih::tools::{Confinement, SandboxStates};
use girih::{OpenOptions, RunOptions};
use girih_serve::ServedModel;

use crate::{loading, machine};

/// What a server reads beside its models.
#[derive(Clone, Debug, Default)]
pub struct ServerReads {
    /// Draft models, and the folder of models.
    pub models: Vec<PathBuf>,
    /// Files, such as chat templates.
    pub files: Vec<PathBuf>,
}

/// The options of models that a server does not have yet.
#[derive(Clone, Debug)]
pub struct UsualOptions {
    /// Where their files are kept.
    pub open: OpenOptions,
    /// How they run.
    pub run: RunOptions,
}

/// What a server of these models may do with files, and of further ones with the `usual` options.
pub fn of_server(models: &[ServedModel], usual: Option<&UsualOptions>, reads: &ServerReads) -> Confinement {
    let run = loading::own_program().into_iter().collect();
    let mut allowed = Confinement { run, read: machine::own_code(), ..Confinement::default() };
    let sources = models.iter().map(|model| Path::new(&model.source));
    let sources = sources.chain(reads.models.iter().map(PathBuf::as_path));
    sources.for_each(|source| allowed.read.extend(folders(source)));
    allowed.read.extend(reads.files.iter().cloned());
    let options = models.iter().map(|model| (&model.open_options, &model.run_options));
    for (open, run) in options.chain(usual.map(|usual| (&usual.open, &usual.run))) {
        let OpenOptions { cache, hub, .. } = open;
        allowed.read.extend(hub.as_ref().ok().map(|hub| hub.cache.clone()));
        let RunOptions { prompt_cache, backend, .. } = run;
        let written = cache.iter().chain(prompt_cache.as_ref().map(|cache| &cache.folder));
        allowed.write.extend(written.cloned());
        let driver = backend.info().driver;
        allowed.read.extend(driver.read.iter().map(PathBuf::from));
        allowed.devices.extend(driver.devices.iter().flat_map(|pattern| matching(pattern)));
        let settings = backend.settings();
        let of_driver = driver.options.iter().flat_map(|option| settings.all(option));
        allowed.read.extend(of_driver.flat_map(|path| folders(Path::new(path))));
        let others = backend.info().options.iter().filter(|option| !driver.options.contains(&option.name));
        let values = others.flat_map(|option| settings.all(option.name));
        allowed.write.extend(values.filter(|value| value.contains('/')).map(PathBuf::from));
    }
    // A rule is about a folder that exists. What cannot be created is named when it is needed.
    for folder in &allowed.write {
        let _ = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    }
    allowed
}

/// The paths that a pattern of a driver's devices means; `*` at its end stands for any further letters.
fn matching(pattern: &str) -> Vec<PathBuf> {
    let Some(prefix) = pattern.strip_suffix('*') else { return vec![PathBuf::from(pattern)] };
    let folder = Path::new(prefix).parent().unwrap_or(Path::new("/"));
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.to_str().is_some_and(|path| path.starts_with(prefix))).collect()
}

/// The folder of a model's files, and those to which links in it lead.
fn folders(source: &Path) -> Vec<PathBuf> {
    let Ok(real) = source.canonicalize() else { return Vec::new() };
    let folder_of = |path: &Path| if path.is_dir() { path.to_owned() } else { path.with_file_name("") };
    let (named, real) = (folder_of(source), folder_of(&real));
    let entries = std::fs::read_dir(if named.as_os_str().is_empty() { Path::new(".") } else { &named });
    let links = entries.into_iter().flatten().flatten().filter(|entry| entry.path().is_symlink());
    let targets: Vec<PathBuf> = links.filter_map(|entry| entry.path().canonicalize().ok()).collect();
    let named = if named.as_os_str().is_empty() { PathBuf::from(".") } else { named };
    targets.into_iter().chain([named, real]).collect()
}

/// What the user should know of a sandbox that lacks a layer.
pub fn missing(states: &SandboxStates) -> Option<String> {
    let off = states
        .iter()
        .filter_map(|(layer, reason)| Some(format!("{} is off ({})", layer.name(), reason.as_ref()?)));
    let off: Vec<String> = off.collect();
    (!off.is_empty()).then(|| format!("the server is not fully confined: {}", off.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_means_the_devices_whose_names_begin_so() {
        assert_eq!(matching("/dev/nul"), [PathBuf::from("/dev/nul")]);
        let found = matching("/dev/nul*");
        assert!(found.contains(&PathBuf::from("/dev/null")), "{found:?}");
        assert!(found.iter().all(|path| path.to_str().is_some_and(|path| path.starts_with("/dev/nul"))));
        assert_eq!(matching("/dev/no such device*"), [] as [PathBuf; 0]);
    }
}
