//! Reads the addresses of the hub's pages, which users paste in place of a model's id.

use girih_file::{Q4NX_FILE, quote};

/// The hosts of the hub itself.
const HUB_HOSTS: [&str; 3] = ["huggingface.co", "www.huggingface.co", "hf.co"];

/// The kinds of pages that show a revision, or a file of it.
const PAGES_OF_REVISION: [&str; 4] = ["tree", "blob", "resolve", "raw"];

/// The text of the id, `org/name[@revision][:QUANT]`, that the address `text` means; `None` if
/// `text` is no address. Addresses of the server `endpoint` count as the hub's.
///
/// # Errors
/// Why the address does not name a model of the hub.
pub(super) fn id_of_page(text: &str, endpoint: &str) -> Option<Result<String, String>> {
    let address = match text.split_once("://") {
        Some(("https" | "http", address)) => address,
        Some((scheme, _)) => return Some(Err(format!("its scheme is {scheme:?}; https is needed"))),
        None if names_host(text) => text,
        None => return None,
    };
    let address = address.split(['?', '#']).next().unwrap_or_default();
    Some(path_of(address, endpoint).and_then(id_of_path))
}

/// Whether a text without a scheme begins with a host. An id has one slash, and more only behind
/// its '@' or ':'.
fn names_host(text: &str) -> bool {
    let (first, rest) = text.split_once('/').unwrap_or((text, ""));
    let name = rest.split(['@', ':']).next().unwrap_or_default();
    name.contains('/') && first.contains(['.', ':']) && !first.starts_with('.')
}

/// The path of an address without its scheme.
fn path_of<'a>(address: &'a str, endpoint: &str) -> Result<&'a str, String> {
    let base = endpoint.split_once("://").map_or(endpoint, |(_, base)| base).trim_end_matches('/');
    let below = |base: &str| {
        let head = address.get(..base.len()).filter(|head| head.eq_ignore_ascii_case(base))?;
        address[head.len()..].strip_prefix('/')
    };
    let hosts = HUB_HOSTS.iter().copied().chain((!base.is_empty()).then_some(base));
    hosts.filter_map(below).next().ok_or_else(|| {
        let host = quote(address.split('/').next().unwrap_or_default());
        format!("{host} is not the hub; models come from huggingface.co, hf.co or the host of HF_ENDPOINT")
    })
}

/// The id in the path of a page: `org/name`, or a page of one of its revisions.
fn id_of_path(path: &str) -> Result<String, String> {
    let parts: Vec<String> = path.split('/').filter(|part| !part.is_empty()).map(decode).collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    match parts.as_slice() {
        ["datasets", ..] => Err("it is the address of a data set".to_owned()),
        ["spaces", ..] => Err("it is the address of a space".to_owned()),
        [] | [_] => Err("the address names no model".to_owned()),
        [org, name] => Ok(format!("{org}/{name}")),
        [org, name, page, rest @ ..] if PAGES_OF_REVISION.contains(page) => {
            // Of the names with slashes, the hub's own `refs/pr/1` are the usual ones.
            let length = if rest.first() == Some(&"refs") { 3 } else { 1 };
            let (revision, file) = rest.split_at_checked(length).ok_or("the address names no revision")?;
            let revision = match revision.join("/") {
                main if main == "main" => String::new(),
                revision => format!("@{revision}"),
            };
            let label = label_of(page, file)?.map_or(String::new(), |label| format!(":{label}"));
            Ok(format!("{org}/{name}{revision}{label}"))
        }
        [_, _, page, ..] => Err(format!("{} is not a page of a model's files", quote(page))),
    }
}

/// The label of the GGUF model that a page of a file or a folder shows; `None` for the
/// repository's safetensors or `model.q4nx`.
fn label_of(page: &str, file: &[&str]) -> Result<Option<String>, String> {
    let Some(last) = file.last() else { return Ok(None) };
    if page == "tree" {
        return Ok(Some((*last).to_owned()));
    }
    let path = file.join("/");
    if let Some(stem) = path.strip_suffix(".gguf") {
        return Ok(Some(stem.to_owned()));
    }
    if path == Q4NX_FILE || file.len() == 1 && last.starts_with("model") && last.ends_with(".safetensors") {
        return Ok(None);
    }
    Err(format!("it is the address of {}, which is not a model", quote(&path)))
}

/// Replaces percent-encoded bytes; what is not valid stays as it is, and no id contains it.
fn decode(part: &str) -> String {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let encoded = (first == b'%').then(|| after.first_chunk::<2>()).flatten();
        let digits = encoded.filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let byte = digits.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok());
        bytes.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).unwrap_or_else(|_| part.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIRROR: &str = "http://127.0.0.1:8080/hub";

    #[test]
    fn pages_name_their_model() {
        for (address, id) in [
            ("https://huggingface.co/org/name", "org/name"),
            ("https://HuggingFace.co/org/name/", "org/name"),
            ("http://huggingface.co/org/name?library=x#files", "org/name"),
            ("hf.co/org/name", "org/name"),
            ("hf.co/org/name:Q4_0", "org/name:Q4_0"),
            ("https://hf.co/org/name:Q4_0", "org/name:Q4_0"),
            ("huggingface.co/org/name@v1", "org/name@v1"),
            ("https://huggingface.co/org/name/tree/main", "org/name"),
            ("https://huggingface.co/org/name/tree/v1.0", "org/name@v1.0"),
            ("https://huggingface.co/org/name/tree/refs%2Fpr%2F3", "org/name@refs/pr/3"),
            ("https://huggingface.co/org/name/tree/refs/pr/3", "org/name@refs/pr/3"),
            ("https://huggingface.co/org/name/tree/main/BF16", "org/name:BF16"),
            ("https://huggingface.co/org/name/blob/main/m-Q8_0.gguf", "org/name:m-Q8_0"),
            ("https://huggingface.co/org/name/resolve/v1/Q8_0/m.gguf?download=true", "org/name@v1:Q8_0/m"),
            ("https://huggingface.co/org/name/blob/main/model-00001-of-00002.safetensors", "org/name"),
            ("https://huggingface.co/org/name/blob/main/model.q4nx", "org/name"),
            ("http://127.0.0.1:8080/hub/org/name", "org/name"),
            ("127.0.0.1:8080/hub/org/name/tree/v1", "org/name@v1"),
        ] {
            assert_eq!(id_of_page(address, MIRROR), Some(Ok(id.to_owned())), "{address}");
        }
    }

    #[test]
    fn an_id_or_a_name_is_no_address() {
        for text in ["org/name", "org.x/name", "org/name@a/b/c", "org/name:a/b", "name", "", "./a/b", "a.b"] {
            assert_eq!(id_of_page(text, MIRROR), None, "{text}");
        }
    }

    #[test]
    fn other_hosts_and_pages_are_refused_by_name() {
        for (address, why) in [
            ("https://modelscope.cn/org/name", "modelscope.cn"),
            ("modelscope.cn/org/name", "modelscope.cn"),
            ("https://huggingface.co.evil/org/name", "huggingface.co.evil"),
            ("https://huggingface.co@evil/org/name", "huggingface.co@evil"),
            ("https://127.0.0.1:8080/org/name", "127.0.0.1:8080"),
            ("ftp://huggingface.co/org/name", "ftp"),
            ("https://huggingface.co/datasets/org/name", "data set"),
            ("https://huggingface.co/spaces/org/name", "space"),
            ("https://huggingface.co/org", "no model"),
            ("https://huggingface.co/org/name/tree", "no revision"),
            ("https://huggingface.co/org/name/discussions/3", "discussions"),
            ("https://huggingface.co/org/name/blob/main/README.md", "README.md"),
        ] {
            let error = id_of_page(address, MIRROR).expect(address).expect_err(address);
            assert!(error.contains(why), "{address}: {error}");
        }
    }
}
