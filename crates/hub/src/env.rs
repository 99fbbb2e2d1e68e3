//! The cache's folder, the server and the token, from the environment variables
//! that all Hugging Face tools read.

use std::fmt;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use girih_file::open_regular;
use girih_tensor::{Error, Result};

const ENDPOINT: &str = "https://huggingface.co";
/// The maximum size of a token file; real tokens have about 40 bytes.
const TOKEN_FILE_BYTES_MAX: u64 = 4096;

/// The settings of lookups and downloads.
#[derive(Clone)]
pub struct HubEnv {
    /// The folder that holds `models--org--name` folders.
    pub cache: PathBuf,
    /// The access token, sent only to the endpoint.
    pub token: Option<String>,
    /// Whether network access is disabled.
    pub offline: bool,
    /// The server, without a slash at the end.
    pub endpoint: String,
    /// The proxy for requests to other machines.
    pub proxy: Option<String>,
    /// Hosts that bypass the proxy.
    pub no_proxy: Vec<String>,
}

impl HubEnv {
    /// Reads the settings with `get`, which returns the value of a variable.
    ///
    /// Variables: `HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME` and `HOME` set
    /// the cache's folder; `HF_TOKEN`, else the file `HF_TOKEN_PATH` or `$HF_HOME/token`,
    /// is the token; `HF_HUB_OFFLINE`, `HF_ENDPOINT`, `HTTPS_PROXY`, `ALL_PROXY`
    /// and `NO_PROXY` (or lower case) have their usual meaning. An empty
    /// variable counts as unset.
    pub fn from_vars(get: impl Fn(&str) -> Option<String>) -> Result<HubEnv> {
        let get = |name: &str| get(name).filter(|value| !value.trim().is_empty());
        let either = |name: &str| get(name).or_else(|| get(&name.to_ascii_lowercase()));
        let home = get("HOME").map(PathBuf::from);
        let path = |name: &str| get(name).map(|value| expand(&value, home.as_deref())).transpose();

        let hf_home = match (path("HF_HOME")?, path("XDG_CACHE_HOME")?, &home) {
            (Some(hf_home), ..) => Some(hf_home),
            (None, Some(xdg), _) => Some(xdg.join("huggingface")),
            (None, None, Some(home)) => Some(home.join(".cache/huggingface")),
            (None, None, None) => None,
        };
        let cache = path("HF_HUB_CACHE")?.or_else(|| hf_home.as_ref().map(|folder| folder.join("hub")));
        let cache = cache.ok_or_else(|| {
            Error::new(
                "the model cache has no folder: HF_HUB_CACHE, HF_HOME and HOME are all unset; set one of them",
            )
        })?;
        let token_file = path("HF_TOKEN_PATH")?.or_else(|| hf_home.map(|folder| folder.join("token")));
        let token = match (get("HF_TOKEN"), token_file) {
            (Some(token), _) => check_token(&token, "HF_TOKEN")?,
            (None, Some(file)) => read_token(&file)?,
            (None, None) => None,
        };
        let endpoint = get("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        Ok(HubEnv {
            cache,
            token,
            offline: get("HF_HUB_OFFLINE").is_some_and(|value| is_true(&value)),
            endpoint: endpoint.trim().trim_end_matches('/').to_owned(),
            proxy: either("HTTPS_PROXY").or_else(|| either("ALL_PROXY")),
            no_proxy: either("NO_PROXY").map(|list| words(&list)).unwrap_or_default(),
        })
    }

    /// Settings with this cache folder and server, and no token or proxy.
    pub fn new(cache: impl Into<PathBuf>, endpoint: impl Into<String>) -> HubEnv {
        HubEnv {
            cache: cache.into(),
            token: None,
            offline: false,
            endpoint: endpoint.into(),
            proxy: None,
            no_proxy: Vec::new(),
        }
    }
}

impl fmt::Debug for HubEnv {
    /// Hides the token and the proxy, which may contain passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HubEnv")
            .field("cache", &self.cache)
            .field("token", &self.token.as_ref().map(|_| "(set)"))
            .field("offline", &self.offline)
            .field("endpoint", &self.endpoint)
            .field("proxy", &self.proxy.as_ref().map(|_| "(set)"))
            .finish_non_exhaustive()
    }
}

fn words(list: &str) -> Vec<String> {
    list.split(',').map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// Whether `huggingface_hub` reads an environment variable's value as true.
fn is_true(value: &str) -> bool {
    ["1", "on", "yes", "true"].contains(&value.trim().to_ascii_lowercase().as_str())
}

fn expand(path: &str, home: Option<&Path>) -> Result<PathBuf> {
    match (path.strip_prefix("~/"), home) {
        (None, _) => Ok(PathBuf::from(path)),
        (Some(rest), Some(home)) => Ok(home.join(rest)),
        (Some(_), None) => Err(Error::new(format!(
            "{path:?} starts at the home folder, but HOME is unset; write an absolute path"
        ))),
    }
}

fn read_token(file: &Path) -> Result<Option<String>> {
    let failed = |error| {
        Error::new(format!("the token cannot be read ({error}); set HF_TOKEN instead")).of(file.display())
    };
    let opened = match open_regular(file) {
        Ok(opened) => opened,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut token = String::new();
    opened.take(TOKEN_FILE_BYTES_MAX).read_to_string(&mut token).map_err(failed)?;
    check_token(&token, &file.display().to_string())
}

/// Checks that a token can be sent as a header: one line of visible ASCII.
fn check_token(token: &str, origin: &str) -> Result<Option<String>> {
    let token = token.trim();
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Error::new(format!(
            "the token in {origin} contains spaces or unprintable characters; write it on one line"
        )));
    }
    Ok(Some(token.to_owned()).filter(|token| !token.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(vars: &[(&str, &str)]) -> Result<HubEnv> {
        HubEnv::from_vars(|name| {
            vars.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_cache_is_where_other_tools_keep_it() {
        let cases: &[(&[(&str, &str)], &str)] = &[
            (&[("HOME", "/h")], "/h/.cache/huggingface/hub"),
            (&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub"),
            (&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x"), ("HF_HOME", "~/hf")], "/h/hf/hub"),
            (&[("HOME", "/h"), ("HF_HOME", "/hf"), ("HF_HUB_CACHE", "/c")], "/c"),
            (&[("HOME", "/h"), ("HF_HOME", "")], "/h/.cache/huggingface/hub"),
        ];
        for (vars, cache) in cases {
            assert_eq!(env(vars).unwrap().cache, Path::new(cache));
        }
        assert!(env(&[]).unwrap_err().to_string().contains("HF_HUB_CACHE"));
    }

    #[test]
    fn offline_endpoint_and_proxy_are_read() {
        let plain = env(&[("HOME", "/nonexistent")]).unwrap();
        assert_eq!((plain.offline, plain.endpoint.as_str(), plain.token), (false, ENDPOINT, None));
        let set = env(&[
            ("HOME", "/nonexistent"),
            ("HF_HUB_OFFLINE", "Yes"),
            ("HF_ENDPOINT", "https://mirror/"),
            ("https_proxy", "http://p:1"),
            ("NO_PROXY", "a, b"),
        ]);
        let set = set.unwrap();
        assert_eq!((set.offline, set.endpoint.as_str()), (true, "https://mirror"));
        assert_eq!((set.proxy.as_deref(), set.no_proxy.len()), (Some("http://p:1"), 2));
        assert!(!env(&[("HOME", "/h"), ("HF_HUB_OFFLINE", "0")]).unwrap().offline);
    }

    #[test]
    fn a_token_is_one_line_and_is_never_printed() {
        let set = env(&[("HOME", "/nonexistent"), ("HF_TOKEN", " hf_secret\n")]).unwrap();
        assert_eq!(set.token.as_deref(), Some("hf_secret"));
        assert!(!format!("{set:?}").contains("secret"));
        assert!(env(&[("HOME", "/nonexistent"), ("HF_TOKEN", "a\r\nb")]).is_err());
    }
}
