//! References to URIs, split and resolved as RFC 3986 describes.

/// The components of a reference (RFC 3986, appendix B). Each is without its delimiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UriReference<'a> {
    pub scheme: Option<&'a str>,
    pub authority: Option<&'a str>,
    pub path: &'a str,
    pub query: Option<&'a str>,
    pub fragment: Option<&'a str>,
}

impl<'a> UriReference<'a> {
    /// Splits a reference; its characters are not checked.
    pub fn split(text: &'a str) -> UriReference<'a> {
        let cut = |text: &'a str, mark| match text.split_once(mark) {
            Some((before, after)) => (before, Some(after)),
            None => (text, None),
        };
        let (rest, fragment) = cut(text, '#');
        let (rest, query) = cut(rest, '?');
        let (scheme, rest) = match rest.split_once(':') {
            Some((scheme, rest)) if is_scheme(scheme) => (Some(scheme), rest),
            _ => (None, rest),
        };
        let (authority, path) = match rest.strip_prefix("//") {
            Some(rest) => {
                let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                (Some(authority), path)
            }
            None => (None, rest),
        };
        UriReference { scheme, authority, path, query, fragment }
    }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

/// Resolves a reference against a base (RFC 3986, section 5.2.2): the URI without its fragment, and the
/// fragment, empty if there is none.
pub(super) fn resolve(base: &str, reference: &str) -> (String, String) {
    let (base, given) = (UriReference::split(base), UriReference::split(reference));
    let mut target = UriReference { fragment: None, ..given };
    let mut path = without_dots(given.path);
    if given.scheme.is_none() {
        target.scheme = base.scheme;
        if given.authority.is_none() {
            target.authority = base.authority;
            if given.path.is_empty() {
                path = base.path.to_owned();
                target.query = given.query.or(base.query);
            } else if !given.path.starts_with('/') {
                path = without_dots(&merged(base, given.path));
            }
        }
    }
    let part = |before: &str, text: Option<&str>, after: &str| {
        text.map_or(String::new(), |text| format!("{before}{text}{after}"))
    };
    let (scheme, authority) = (part("", target.scheme, ":"), part("//", target.authority, ""));
    let uri = format!("{scheme}{authority}{path}{}", part("?", target.query, ""));
    (uri, given.fragment.unwrap_or_default().to_owned())
}

/// A relative path in place of the base's last segment (section 5.2.3).
fn merged(base: UriReference<'_>, path: &str) -> String {
    if base.authority.is_some() && base.path.is_empty() {
        return format!("/{path}");
    }
    format!("{}{path}", &base.path[..base.path.rfind('/').map_or(0, |at| at + 1)])
}

/// A path without the segments `.` and `..` (section 5.2.4).
fn without_dots(path: &str) -> String {
    let is_dots = |segment: &str| segment == "." || segment == "..";
    let mut kept: Vec<&str> = Vec::new();
    let rooted = path.starts_with('/');
    let inner = path.strip_prefix('/').unwrap_or(path);
    for segment in inner.split('/') {
        match segment {
            "." => {}
            ".." => drop(kept.pop()),
            segment => kept.push(segment),
        }
    }
    // A dot segment at the end leaves the slash before it.
    if inner.rsplit('/').next().is_some_and(is_dots) && !kept.is_empty() {
        kept.push("");
    }
    format!("{}{}", if rooted { "/" } else { "" }, kept.join("/"))
}

/// Decodes `%XX`; `None` if the result is not UTF-8, or two digits are missing.
pub(super) fn percent_decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = (part.get(..2)?, part.get(2..)?);
        if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_resolve_as_in_the_examples_of_the_rfc() {
        // Section 5.4.1, and abnormal ones of 5.4.2.
        let base = "http://a/b/c/d;p?q";
        let cases = [
            ("g:h", "g:h"),
            ("g", "http://a/b/c/g"),
            ("./g", "http://a/b/c/g"),
            ("g/", "http://a/b/c/g/"),
            ("/g", "http://a/g"),
            ("//g", "http://g"),
            ("?y", "http://a/b/c/d;p?y"),
            ("g?y", "http://a/b/c/g?y"),
            ("", "http://a/b/c/d;p?q"),
            (".", "http://a/b/c/"),
            ("..", "http://a/b/"),
            ("../g", "http://a/b/g"),
            ("../..", "http://a/"),
            ("../../g", "http://a/g"),
            ("../../../g", "http://a/g"),
            ("g;x=1/./y", "http://a/b/c/g;x=1/y"),
        ];
        for (reference, expected) in cases {
            assert_eq!(resolve(base, reference), (expected.to_owned(), String::new()), "{reference}");
        }
        assert_eq!(resolve(base, "g#s"), ("http://a/b/c/g".to_owned(), "s".to_owned()));
        assert_eq!(resolve("", "#/a"), (String::new(), "/a".to_owned()));
        assert_eq!(resolve("", "a/b"), ("a/b".to_owned(), String::new()));
        assert_eq!(resolve("a/b", "c"), ("a/c".to_owned(), String::new()));
        assert_eq!(resolve("urn:uuid:1", "#g"), ("urn:uuid:1".to_owned(), "g".to_owned()));
        assert_eq!(resolve("http://a", "d"), ("http://a/d".to_owned(), String::new()));
    }

    #[test]
    fn percent_signs_need_two_digits() {
        assert_eq!(percent_decoded("a%20b%c3%A9"), Some("a bé".to_owned()));
        for wrong in ["%", "%2", "%zz", "%+1", "%ff", "%é"] {
            assert_eq!(percent_decoded(wrong), None, "{wrong}");
        }
    }
}
