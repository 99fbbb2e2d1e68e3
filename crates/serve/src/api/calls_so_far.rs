//! The calls of tools in a conversation: each result follows a call.

use std::collections::{HashMap, VecDeque};

use serde_json::Value;

use crate::error::ApiError;

/// The calls of the messages so far. The work for each message does not grow with their number.
#[derive(Debug, Default)]
pub struct CallsSoFar {
    calls: Vec<EarlierCall>,
    /// The number of calls to which girih gave an id.
    numbered: usize,
    /// The index of the latest call with an id.
    by_id: HashMap<String, usize>,
    by_name: HashMap<String, CallsOfName>,
    /// All calls before this index have their results.
    answered: usize,
}

/// A call of an earlier message.
#[derive(Debug)]
struct EarlierCall {
    id: String,
    /// Whether its result has come.
    has_result: bool,
}

/// The calls of one function.
#[derive(Debug, Default)]
struct CallsOfName {
    latest: usize,
    /// The calls of which no result has come, and some of which one has.
    waiting: VecDeque<usize>,
}

impl CallsSoFar {
    /// Reads the next message in the form of chat templates. A call without an id gets one. A result without an id gets
    /// that of its call: the oldest call of its name that waits for a result, else the latest one of its name; without
    /// a name, the oldest call that waits.
    ///
    /// # Errors
    /// When the message is a result without its call.
    pub fn follow(&mut self, param: &str, message: &mut Value) -> Result<(), ApiError> {
        if message["role"] == "tool" {
            return self.result(param, message);
        }
        for call in message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
            if call.get("id").is_none() {
                // Chat templates of Mistral take ids of nine letters only.
                call["id"] = format!("call{:05}", self.numbered % 100_000).into();
                self.numbered += 1;
            }
            self.add(&call["id"], &call["function"]["name"]);
        }
        Ok(())
    }

    fn add(&mut self, id: &Value, name: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let index = self.calls.len();
        self.by_id.insert(text(id), index);
        let named = self.by_name.entry(text(name)).or_default();
        named.latest = index;
        named.waiting.push_back(index);
        self.calls.push(EarlierCall { id: text(id), has_result: false });
    }

    fn result(&mut self, param: &str, message: &mut Value) -> Result<(), ApiError> {
        let wrong = |field: &str, sentence: &str| {
            let param = format!("{param}.{field}");
            let message = format!("{param} {sentence}");
            Err(ApiError::invalid(param, message))
        };
        if self.calls.is_empty() {
            return wrong("role", "is that of a result, but no message before it has a call");
        }
        let text = |field: &str| message.get(field).and_then(Value::as_str);
        let index = match (text("tool_call_id"), text("name").filter(|name| !name.is_empty())) {
            (Some(id), _) => match self.by_id.get(id) {
                Some(index) => *index,
                None => return wrong("tool_call_id", "names no call of a message before it"),
            },
            (None, Some(name)) => match self.of_name(name) {
                Some(index) => index,
                None => return wrong("name", "names no function that a message before it calls"),
            },
            (None, None) => match self.oldest_waiting() {
                Some(index) => index,
                None => return wrong("tool_call_id", "is missing, and each call before it has a result"),
            },
        };
        let call = &mut self.calls[index];
        call.has_result = true;
        message["tool_call_id"] = call.id.as_str().into();
        Ok(())
    }

    /// The call of a function to which its next result belongs.
    fn of_name(&mut self, name: &str) -> Option<usize> {
        let named = self.by_name.get_mut(name)?;
        while let Some(index) = named.waiting.pop_front() {
            if !self.calls[index].has_result {
                return Some(index);
            }
        }
        Some(named.latest)
    }

    fn oldest_waiting(&mut self) -> Option<usize> {
        let waiting = self.calls[self.answered..].iter().position(|call| !call.has_result);
        self.answered = waiting.map_or(self.calls.len(), |more| self.answered + more);
        waiting.map(|_| self.answered)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn followed(messages: Value) -> Result<Value, (String, String)> {
        let mut calls = CallsSoFar::default();
        let Value::Array(mut messages) = messages else { panic!("no list") };
        for (index, message) in messages.iter_mut().enumerate() {
            let followed = calls.follow(&format!("messages[{index}]"), message);
            followed.map_err(|error| (error.param.unwrap_or_default().to_string(), error.message))?;
        }
        Ok(Value::Array(messages))
    }

    #[test]
    fn a_result_follows_its_call() {
        let call = |id: Value| json!({"role": "assistant", "tool_calls": [{"id": id, "function": {"name": "look"}}]});
        let result = json!({"role": "tool", "tool_call_id": "c1"});
        let known = json!([call(json!("c1")), result]);
        assert_eq!(followed(known.clone()), Ok(known));
        let param = |messages: Value| followed(messages).unwrap_err().0;
        assert_eq!(param(json!([result])), "messages[0].role");
        assert_eq!(param(json!([call(json!("c2")), result])), "messages[1].tool_call_id");
        // Results that name their tool only belong to its calls in order.
        let named = json!({"role": "tool", "name": "look"});
        let both = followed(json!([call(json!("c1")), call(json!("c2")), named, named])).unwrap();
        assert_eq!((&both[2]["tool_call_id"], &both[3]["tool_call_id"]), (&json!("c1"), &json!("c2")));
        // One after the last of them belongs to it, too.
        let again = followed(json!([call(json!("c1")), call(json!("c2")), named, named, named])).unwrap();
        assert_eq!(again[4]["tool_call_id"], "c2");
        let other = json!({"role": "tool", "name": "see"});
        assert_eq!(param(json!([call(json!("c1")), other])), "messages[1].name");
    }

    #[test]
    fn a_result_without_a_name_belongs_to_the_oldest_call_that_waits() {
        let call =
            |id: &str| json!({"role": "assistant", "tool_calls": [{"id": id, "function": {"name": "look"}}]});
        let nameless = json!({"role": "tool"});
        let second = json!({"role": "tool", "tool_call_id": "c1"});
        let all = json!([call("c0"), call("c1"), call("c2"), second, nameless, nameless]);
        let written = followed(all.clone()).unwrap();
        assert_eq!((&written[4]["tool_call_id"], &written[5]["tool_call_id"]), (&json!("c0"), &json!("c2")));
        let Value::Array(mut more) = all else { panic!("no list") };
        more.push(nameless);
        let (param, message) = followed(Value::Array(more)).unwrap_err();
        assert_eq!((&*param, message.contains("is missing")), ("messages[6].tool_call_id", true));
    }

    #[test]
    fn calls_without_ids_get_some() {
        let call = json!({"role": "assistant", "tool_calls": [{"function": {"name": "look"}}]});
        let result = |name: &str| json!({"role": "tool", "name": name});
        let written = followed(json!([call, result("look"), call, result("look")])).unwrap();
        assert_eq!(
            (&written[0]["tool_calls"][0]["id"], &written[1]["tool_call_id"]),
            (&json!("call00000"), &json!("call00000"))
        );
        assert_eq!(written[3]["tool_call_id"], "call00001");
        let (param, message) = followed(json!([call, result("see")])).unwrap_err();
        assert_eq!((&*param, message.contains("names no function")), ("messages[1].name", true));
    }
}
