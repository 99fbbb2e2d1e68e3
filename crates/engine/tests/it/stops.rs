//! Stop tokens and stop strings.

use girih_engine::text::StopStrings;
use girih_engine::{Sampling, Stop, StopRules, Stops, TokenRequest};

use crate::oracle::{self, Pieces, engine, prompt, reply, request};

/// Returns the text that a stream releases for `pieces`, and the stop string that ended it.
fn shown(stops: &[&str], pieces: &[&str]) -> (String, Option<String>) {
    let mut stream = StopStrings::new(stops.iter().map(|stop| stop.to_string()).collect());
    let mut text = String::new();
    for piece in pieces {
        let certain = stream.push(piece);
        text += &certain.text;
        if certain.stop.is_some() {
            return (text, certain.stop);
        }
    }
    (text + &stream.finish(), None)
}

#[test]
fn the_stop_string_found_does_not_depend_on_the_pieces() {
    let cases: [(&[&str], &str, &str, Option<&str>); 8] = [
        (&["stop"], "go stop here", "go ", Some("stop")),
        (&["stop"], "go sto", "go sto", None),
        (&["aab"], "aaab", "a", Some("aab")),
        (&["abc", "bc"], "xabcx", "x", Some("abc")),
        (&["abcd", "bc"], "xabcdx", "xa", Some("bc")),
        (&["日本", "é"], "これは日日本é", "これは日", Some("日本")),
        (&["\n\nUser:"], "a\n\nUse\n\nUser: b", "a\n\nUse", Some("\n\nUser:")),
        (&[], "anything", "anything", None),
    ];
    for (stops, text, want, stop) in cases {
        let want = (want.to_owned(), stop.map(str::to_owned));
        let characters: Vec<String> = text.chars().map(String::from).collect();
        let by_character: Vec<&str> = characters.iter().map(String::as_str).collect();
        assert_eq!(shown(stops, &[text]), want, "in one piece");
        assert_eq!(shown(stops, &by_character), want, "by character");
        for (cut, _) in text.char_indices() {
            assert_eq!(shown(stops, &[&text[..cut], &text[cut..]]), want, "cut at {cut}");
        }
    }
}

#[test]
fn only_a_possible_stop_string_is_held_back() {
    let mut stream = StopStrings::new(vec!["<end>".into()]);
    let shown: Vec<String> = ["a<", "e", "x<en", "d", " b"].map(|piece| stream.push(piece).text).into();
    assert_eq!(shown, ["a", "", "<ex", "", "<end b"]);
}

#[test]
fn a_stop_string_ends_the_reply_before_it() {
    let prompt = prompt(31, 20);
    let whole = oracle::greedy(&prompt, 40);
    let text = Pieces::text(&whole);
    let characters: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    // Strings that span several tokens, and start and end within one.
    for (first, count) in [(0, 3), (9, 5), (20, 2), (30, 11)] {
        let stop = &text[characters[first]..characters[first + count]];
        let stops = Stops { tokens: vec![], strings: vec!["never".into(), stop.to_owned()] };
        for chunk in [1, 64] {
            let ask = TokenRequest { stops: stops.clone(), ..request(&prompt, 40) };
            let reply = reply(&mut engine(chunk).0, ask);
            assert_eq!(reply.stop, Some(Stop::String(stop.to_owned())));
            assert_eq!(reply.text, text[..text.find(stop).unwrap()]);
            assert!(whole.starts_with(&reply.ids) && reply.ids.len() < whole.len());
        }
    }
}

#[test]
fn text_is_complete_without_a_stop() {
    let prompt = prompt(32, 20);
    let whole = oracle::greedy(&prompt, 60);
    // Each prefix of this string in the text is held back, then released.
    let last = Pieces::text(&whole);
    let stops = Stops { tokens: vec![], strings: vec![format!("{}#", &last[last.len() - 2..])] };
    let reply = reply(&mut engine(64).0, TokenRequest { stops, ..request(&prompt, 60) });
    assert_eq!((reply.stop, reply.text), (Some(Stop::Length), last));
}

#[test]
fn a_stop_token_ends_the_reply_and_is_not_part_of_it() {
    let prompt = prompt(33, 20);
    let whole = oracle::greedy(&prompt, 30);
    let stops = Stops { tokens: vec![whole[12], whole[20]], strings: vec![] };
    let first = whole.iter().position(|id| stops.tokens.contains(id)).unwrap();
    let reply = reply(&mut engine(64).0, TokenRequest { stops, ..request(&prompt, 30) });
    assert_eq!(reply.stop, Some(Stop::Token(whole[first])));
    assert_eq!(reply.ids, whole[..first]);
    assert_eq!(reply.text, Pieces::text(&whole[..first]));
    assert_eq!(reply.stats.unwrap().decode.tokens as usize, first, "the stop token took a step");
}

#[test]
fn half_a_character_after_a_stop_string_is_not_shown() {
    let ask = |stop: &str| TokenRequest {
        stops: Stops { tokens: vec![], strings: vec![stop.to_owned()] },
        sampling: Sampling { bias: vec![(32, f32::INFINITY)], ..Sampling::greedy() },
        ..request(&[1], 1)
    };
    let stopped = reply(&mut engine(64).0, ask("x"));
    assert_eq!((stopped.text.as_str(), stopped.stop), ("", Some(Stop::String("x".into()))));
    // The rest of a character is text, too.
    for (stop, text) in [("\u{FFFD}", "x"), ("x\u{FFFD}", "")] {
        let stopped = reply(&mut engine(64).0, ask(stop));
        assert_eq!((stopped.text.as_str(), stopped.stop), (text, Some(Stop::String(stop.into()))));
    }
    let whole = reply(&mut engine(64).0, ask("y"));
    assert_eq!((whole.text.as_str(), whole.stop), ("x\u{FFFD}", Some(Stop::Length)));
}

#[test]
fn a_stop_string_counts_only_where_it_may_begin_and_after_the_minimum() {
    let stops = || StopStrings::new(vec!["ab".into()]);
    let mut marked = stops().at_marked_places();
    assert_eq!((marked.push("xab").text.as_str(), marked.push("a").text.as_str()), ("xab", ""));
    assert_eq!(marked.push("b").text, "ab", "the place was not marked");
    marked.may_begin_here();
    let released = marked.push("ab");
    assert_eq!((released.text.as_str(), released.stop.as_deref()), ("", Some("ab")));
    let mut late = stops();
    assert_eq!(late.push_unstopped("abxa").text, "abx");
    let released = late.push("bc");
    assert_eq!(
        (released.text.as_str(), released.stop.as_deref()),
        ("", Some("ab")),
        "it ends after the minimum"
    );
    let released = stops().including().push("xabc");
    assert_eq!((released.text.as_str(), released.stop.as_deref()), ("xab", Some("ab")));
}

#[test]
fn nothing_ends_a_reply_before_its_minimum() {
    let prompt = prompt(33, 20);
    let whole = oracle::greedy(&prompt, 30);
    let ask = |min_new, tokens: Vec<u32>, strings: Vec<String>| {
        let stop_rules = StopRules { min_new, ..StopRules::default() };
        let ask = TokenRequest { stops: Stops { tokens, strings }, stop_rules, ..request(&prompt, 30) };
        reply(&mut engine(64).0, ask)
    };
    let stop = whole[12];
    let first = whole.iter().position(|id| *id == stop).unwrap();
    assert_eq!(ask(first as u32, vec![stop], vec![]).ids, whole[..first], "the minimum is reached");
    let longer = ask(first as u32 + 4, vec![stop], vec![]);
    assert!(longer.ids.len() >= first + 4 && !longer.ids.contains(&stop));
    assert_eq!(longer.ids[..first], whole[..first]);
    // A string that ends in the first tokens does not count.
    let text = Pieces::text(&whole[..4]);
    let stopped = ask(4, vec![], vec![text.clone()]);
    assert!(stopped.text.starts_with(&text) && stopped.ids.len() > 4, "{stopped:?}");
    let refused = TokenRequest {
        stop_rules: StopRules { min_new: 1, ..StopRules::default() },
        overflow: girih_engine::Overflow::Truncate,
        ..request(&prompt, 30)
    };
    let error = engine(64).0.submit(refused, Pieces::hooks()).unwrap_err();
    assert!(error.to_string().contains("minimum number of tokens"), "{error}");
}
