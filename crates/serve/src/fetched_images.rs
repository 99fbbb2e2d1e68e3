//! Images that requests name by URL: fetched before the request takes turns with others, within limits on bytes and time,
//! and put into its messages as if the client had sent them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use girih::{ErrorKind, IMAGES_KEPT, Prompt, Tenant};
use serde_json::{Map, Value};

use crate::background::in_background;
use crate::error::ApiError;
use crate::image_fetcher::ImageFetcher;
use crate::images::{image_part, image_parts, too_many_images, url_of};
use crate::models::ListedModel;
use crate::turns::{SharedTurn, SharedTurns};

/// The requests that fetch images or have fetched ones at once; others wait.
const REQUESTS: usize = 4;

/// Those of one key.
const REQUESTS_OF_TENANT: usize = 2;

/// The maximum bytes of the fetched images of a request.
const MAX_BYTES: u64 = 64_000_000;

/// The maximum bytes of one: as many as a decoder takes.
const MAX_IMAGE_BYTES: u64 = 32 << 20;

/// The time in which all images of a request must arrive.
const TIME: Duration = Duration::from_secs(20);

/// What fetches images, and how many requests may have fetched ones.
#[derive(Debug)]
pub struct FetchingImages {
    fetcher: Option<Arc<dyn ImageFetcher>>,
    requests: SharedTurns,
}

impl FetchingImages {
    /// With this fetcher; without one, URLs are refused.
    pub fn new(fetcher: Option<Arc<dyn ImageFetcher>>) -> FetchingImages {
        FetchingImages { fetcher, requests: SharedTurns::new(REQUESTS, REQUESTS_OF_TENANT) }
    }

    /// Fetches the images that the prompts of a tenant's request name by URL, to a model that reads images. The result is held
    /// as long as they are in memory.
    ///
    /// # Errors
    /// When the server fetches none, there are too many, or one cannot be fetched: the error names it.
    pub async fn fetch(
        &self,
        model: &ListedModel,
        tenant: &Tenant,
        prompts: &mut [Prompt],
    ) -> Result<Option<SharedTurn>, ApiError> {
        let named: Vec<(String, String)> = parts_of(prompts).filter_map(|part| url_of(part)).collect();
        let Some((param, _)) = named.first() else { return Ok(None) };
        let Some(fetcher) = self.fetcher.clone() else { return Err(not_fetched(param)) };
        if let Some((param, _)) = named.get(IMAGES_KEPT) {
            return Err(too_many_images(param, named.len()));
        }
        let turn = self.requests.turn_within(tenant, model.run_options.max_wait).await?;
        let (turn, fetched) = in_background(move || Ok((turn, all(&*fetcher, named)?))).await?;
        let urls = parts_of(prompts).filter(|part| url_of(part).is_some());
        for (part, image) in urls.zip(fetched) {
            if let Value::Object(image) = image {
                *part = image;
            }
        }
        Ok(Some(turn))
    }
}

/// The parts of the messages that may be images.
fn parts_of(prompts: &mut [Prompt]) -> impl Iterator<Item = &mut Map<String, Value>> {
    let conversations = prompts.iter_mut().filter_map(|prompt| match prompt {
        Prompt::Conversation(conversation) => Some(conversation),
        Prompt::Text(_) | Prompt::Tokens(_) => None,
    });
    conversations.flat_map(image_parts)
}

/// The parts of images at these URLs, one after another.
fn all(fetcher: &dyn ImageFetcher, named: Vec<(String, String)>) -> Result<Vec<Value>, ApiError> {
    let (begun, mut left) = (Instant::now(), MAX_BYTES);
    let mut images = Vec::with_capacity(named.len());
    for (param, url) in named {
        let time = TIME.saturating_sub(begun.elapsed());
        if time.is_zero() {
            let message =
                format!("{param}: the images of the request did not arrive within {} s", TIME.as_secs());
            return Err(ApiError::invalid(param, message));
        }
        let bytes =
            fetcher.fetch(&url, left.min(MAX_IMAGE_BYTES), time).map_err(|error| match error.kind() {
                ErrorKind::Refused => ApiError::invalid(&param, format!("{param}: {error}")),
                _ => ApiError::from(error),
            })?;
        left = left.saturating_sub(bytes.len() as u64);
        images.push(image_part(&param, &STANDARD.encode(bytes)));
    }
    Ok(images)
}

/// The error of an image that would have to be fetched.
fn not_fetched(param: &str) -> ApiError {
    let message = format!(
        "{param} is a URL that would have to be fetched, which this server does not do (--fetch-images); send \
         data:image/png;base64,… or base64"
    );
    ApiError::unsupported(param, message)
}
