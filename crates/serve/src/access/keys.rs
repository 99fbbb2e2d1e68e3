//! The keys of a server's clients. Only their digests are kept, and a key is compared with all of
//! them in a time that does not depend on it.

use std::ffi::OsString;
use std::fmt;
use std::path::Path;

use axum::http::HeaderMap;
use axum::http::header::{AUTHORIZATION, HeaderValue};
use girih::{Error, ErrorKind, Result, Tenant};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

/// The maximum bytes of a file of keys.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The maximum number of keys: each request is compared with all of them.
const MAX_KEYS: usize = 1000;

/// The maximum bytes of a key.
const MAX_KEY_BYTES: usize = 512;

/// The maximum bytes of a name.
const MAX_NAME_BYTES: usize = 64;

/// The keys of a server's clients.
#[derive(Clone)]
pub struct ApiKeys(Vec<ApiKey>);

#[derive(Clone)]
struct ApiKey {
    digest: [u8; 32],
    tenant: Tenant,
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys", self.0.len())
    }
}

impl ApiKeys {
    /// The keys of a file: one a line, `KEY` or `NAME:KEY`. Keys of one name are one tenant. A key
    /// without a name is called `key-N` by its line. Empty lines and those that begin with `#` do
    /// not count.
    ///
    /// # Errors
    /// When the file cannot be read, other users can read it, or a line is no key; no message
    /// repeats a line.
    pub fn read(path: &Path) -> Result<ApiKeys> {
        let bytes = girih::tools::read_secret(path, MAX_FILE_BYTES)?;
        ApiKeys::parse(&bytes).map_err(|error| error.of(path.display()))
    }

    /// The keys in the text of a file.
    ///
    /// # Errors
    /// When a line is no key, two are the same, or there are none or too many.
    pub fn parse(text: &[u8]) -> Result<ApiKeys> {
        let text = std::str::from_utf8(text)
            .map_err(|_| refused("is not UTF-8; one key a line is needed".to_owned()))?;
        let mut keys = ApiKeys(Vec::new());
        for (number, line) in (1..).zip(text.lines().map(str::trim)) {
            if !line.is_empty() && !line.starts_with('#') {
                keys.add(line, &format!("key-{number}"), &format!("line {number}"))?;
            }
        }
        match keys.0.is_empty() {
            true => Err(refused("has no key; write one a line".to_owned())),
            false => Ok(keys),
        }
    }

    /// The keys of a file, if there is one, and those of options, `KEY` or `NAME:KEY` each; `None` if there
    /// are none. A key without a name is called `option-N`.
    ///
    /// # Errors
    /// As [`ApiKeys::read`]; no message repeats a key.
    pub fn of(file: Option<&Path>, options: &[OsString]) -> Result<Option<ApiKeys>> {
        let mut keys = file.map(ApiKeys::read).transpose()?.unwrap_or_else(|| ApiKeys(Vec::new()));
        for (number, option) in (1..).zip(options) {
            let place = format!("API key {number} of the options");
            keys.add(&option.to_string_lossy(), &format!("option-{number}"), &place)?;
        }
        Ok((!keys.0.is_empty()).then_some(keys))
    }

    /// Adds `KEY` or `NAME:KEY`; `place` is where it stands.
    fn add(&mut self, text: &str, unnamed: &str, place: &str) -> Result<()> {
        let key = parsed(text, unnamed).map_err(|reason| refused(format!("{place} is no key: {reason}")))?;
        if self.0.iter().any(|other| other.digest == key.digest) {
            return Err(refused(format!("{place} repeats a key; remove it")));
        }
        if self.0.len() == MAX_KEYS {
            return Err(refused(format!("has more than {MAX_KEYS} keys")));
        }
        self.0.push(key);
        Ok(())
    }

    /// The tenant of the key that a request carries: in `Authorization: Bearer KEY`, as OpenAI's
    /// clients send it, or in `x-api-key: KEY`, as Anthropic's do. If it has both, one suffices.
    pub fn tenant(&self, headers: &HeaderMap) -> Option<Tenant> {
        let bearer = single(headers, AUTHORIZATION.as_str()).and_then(bearer_key);
        let own = single(headers, "x-api-key").map(HeaderValue::as_bytes);
        [bearer, own].into_iter().flatten().find_map(|key| self.tenant_of_key(key))
    }

    /// The tenant of `key`.
    fn tenant_of_key(&self, key: &[u8]) -> Option<Tenant> {
        let digest: [u8; 32] = Sha256::digest(key).into();
        let (mut found, mut index) = (Choice::from(0), 0_u64);
        for (at, key) in (0_u64..).zip(&self.0) {
            let is_equal = key.digest.ct_eq(&digest);
            index.conditional_assign(&at, is_equal);
            found |= is_equal;
        }
        bool::from(found).then(|| self.0[index as usize].tenant.clone())
    }
}

fn refused(sentence: String) -> Error {
    Error::with_kind(ErrorKind::Refused, sentence)
}

/// The key of `KEY` or `NAME:KEY`; one without a name is called `unnamed`.
fn parsed(text: &str, unnamed: &str) -> std::result::Result<ApiKey, String> {
    let (name, key) = match text.split_once(':') {
        Some((name, key)) => (Some(name.trim()), key.trim()),
        None => (None, text),
    };
    if key.is_empty() || key.len() > MAX_KEY_BYTES || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!("a key is 1 to {MAX_KEY_BYTES} visible ASCII characters"));
    }
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '@');
    if let Some(name) = name
        && (name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(is_of_name))
    {
        return Err(format!("a name is 1 to {MAX_NAME_BYTES} of A-Z a-z 0-9 - _ . @"));
    }
    let tenant = Tenant::new(name.unwrap_or(unnamed));
    Ok(ApiKey { digest: Sha256::digest(key.as_bytes()).into(), tenant })
}

/// The value of a header that a request may have once.
fn single<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a HeaderValue> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?;
    values.next().is_none().then_some(first)
}

/// The key in the value of `Authorization`.
fn bearer_key(value: &HeaderValue) -> Option<&[u8]> {
    let (scheme, key) = value.as_bytes().split_at_checked("bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    fn tenant_of(keys: &str, pairs: &[(&'static str, &'static str)]) -> Option<Tenant> {
        ApiKeys::parse(keys.as_bytes()).expect("keys").tenant(&headers(pairs))
    }

    #[test]
    fn a_key_is_found_in_both_headers() {
        let keys = "# ours\n\nalice:sk-1\nsk-2\nalice: sk-3\n";
        assert_eq!(tenant_of(keys, &[("authorization", "Bearer sk-1")]), Some(Tenant::new("alice")));
        assert_eq!(tenant_of(keys, &[("authorization", "bearer  sk-2")]), Some(Tenant::new("key-4")));
        assert_eq!(tenant_of(keys, &[("x-api-key", "sk-3")]), Some(Tenant::new("alice")));
        assert_eq!(
            tenant_of(keys, &[("authorization", "Bearer other"), ("x-api-key", "sk-2")]),
            Some(Tenant::new("key-4"))
        );
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let keys = "alice:sk-1\n";
        for pairs in [
            &[][..],
            &[("authorization", "sk-1")],
            &[("authorization", "Basic sk-1")],
            &[("authorization", "Bearer")],
            &[("authorization", "Bearer ")],
            &[("authorization", "Bearer sk-")],
            &[("authorization", "Bearer sk-11")],
            &[("authorization", "Bearer SK-1")],
            &[("authorization", "Bearer alice:sk-1")],
            &[("authorization", "Bearer sk-1"), ("authorization", "Bearer sk-1")],
            &[("x-api-key", "")],
            &[("api-key", "sk-1")],
        ] {
            assert_eq!(tenant_of(keys, pairs), None, "{pairs:?}");
        }
    }

    #[test]
    fn a_file_that_is_not_of_keys_is_refused_without_its_text() {
        let cases: [(&[u8], &str); 7] = [
            (b"", "has no key; write one a line"),
            (b"# nothing\n", "has no key; write one a line"),
            (b"a b\n", "line 1 is no key: a key is 1 to 512 visible ASCII characters"),
            (b"alice:\n", "line 1 is no key: a key is 1 to 512 visible ASCII characters"),
            (b"ok\nal ice:sk\n", "line 2 is no key: a name is 1 to 64 of A-Z a-z 0-9 - _ . @"),
            (b"a:sk\nb:sk\n", "line 2 repeats a key; remove it"),
            (b"\xff\n", "is not UTF-8; one key a line is needed"),
        ];
        for (text, sentence) in cases {
            assert_eq!(ApiKeys::parse(text).unwrap_err().to_string(), sentence);
        }
        let many: String = (0..=MAX_KEYS).map(|number| format!("key{number}\n")).collect();
        assert_eq!(ApiKeys::parse(many.as_bytes()).unwrap_err().to_string(), "has more than 1000 keys");
    }

    #[test]
    fn options_may_have_keys() {
        let of = |options: &[&str]| {
            let options: Vec<OsString> = options.iter().map(OsString::from).collect();
            ApiKeys::of(None, &options)
        };
        let keys = of(&["sk-1", "bob:sk-2"]).expect("keys").expect("some");
        let tenant = |key: &'static str| keys.tenant(&headers(&[("x-api-key", key)]));
        assert_eq!(tenant("sk-1"), Some(Tenant::new("option-1")));
        assert_eq!(tenant("sk-2"), Some(Tenant::new("bob")));
        assert!(of(&[]).expect("none").is_none());
        for (options, sentence) in [
            (
                &["", "sk-1"][..],
                "API key 1 of the options is no key: a key is 1 to 512 visible ASCII characters",
            ),
            (&["sk-1", "sk-1"], "API key 2 of the options repeats a key; remove it"),
        ] {
            assert_eq!(of(options).unwrap_err().to_string(), sentence);
        }
    }

    #[test]
    fn keys_are_never_printed() {
        let keys = ApiKeys::parse(b"alice:secret-key\n").expect("keys");
        assert_eq!(format!("{keys:?}"), "1 keys");
    }
}
