//! The clients' service.
//!
//! It must not know workers.

use std::sync::Arc;
use std::time::Duration;

use baton_cluster::PeerInfo;
use baton_proto::v1;
use baton_proto::v1::inference_service_server::InferenceService;
use baton_proto::v1::tokenize_request::Input;
use tonic::{Request, Response, Status};

use super::begin::{Asker, begin};
use super::metered::Metered;
use crate::deadline::time_given;
use crate::error::RequestError;
use crate::recent::Api;
use crate::request::{Admission, Ending};
use crate::shared::Shared;

/// Longest wait of an answer's head for the first event, with which it is sent as one.
const HEAD_WAIT: Duration = Duration::from_millis(5);

/// `baton.v1.InferenceService`.
#[derive(Debug)]
pub(crate) struct Inference(pub(crate) Arc<Shared>);

impl Inference {
    async fn admit_and_start(
        &self,
        request: Request<v1::GenerateRequest>,
        ending: &mut Option<Ending>,
    ) -> Result<Metered, RequestError> {
        let asker = self.enter(&request)?;
        let given = time_given(request.metadata())?;
        let requests = std::iter::once(request.into_inner());
        let mut begun = begin(&self.0, asker, given, requests, ending).await?;
        let only = begun.pop().ok_or(RequestError::Internal)?;
        Ok(only.responses)
    }

    /// Counts a call of whoever sends it.
    fn enter<T>(&self, request: &Request<T>) -> Result<Asker, RequestError> {
        let address = PeerInfo::of(request).and_then(|peer| peer.address);
        let key = request.extensions().get().cloned();
        Asker::new(&self.0, Api::Grpc, address, key)
    }
}

#[tonic::async_trait]
impl InferenceService for Inference {
    type GenerateStream = Metered;

    async fn generate(
        &self,
        request: Request<v1::GenerateRequest>,
    ) -> Result<Response<Metered>, Status> {
        let headers = request.metadata().as_ref();
        let mut ending = Some(Ending::new(&self.0.counters, Api::Grpc, headers));
        match self.admit_and_start(request, &mut ending).await {
            Ok(mut stream) => {
                stream.begin(HEAD_WAIT).await;
                Ok(Response::new(stream))
            }
            Err(error) => {
                if let Some(ending) = &mut ending {
                    ending.refused(error.code(), &error);
                }
                Err(error.into())
            }
        }
    }

    async fn list_models(
        &self,
        _: Request<v1::ListModelsRequest>,
    ) -> Result<Response<v1::ListModelsResponse>, Status> {
        let model = &self.0.model;
        let served = v1::Model {
            name: model.name().to_owned(),
            context_length: model.context_length,
            vocabulary: model.vocabulary,
            eos_ids: model.eos_ids.clone(),
        };
        let models = if self.0.directory.is_ready() {
            vec![served]
        } else {
            Vec::new()
        };
        Ok(Response::new(v1::ListModelsResponse { models }))
    }

    async fn tokenize(
        &self,
        request: Request<v1::TokenizeRequest>,
    ) -> Result<Response<v1::TokenizeResponse>, Status> {
        let _client = self.enter(&request)?;
        let admission = Admission::new(&self.0, time_given(request.metadata())?);
        let request = request.into_inner();
        admission.check_model(&request.model)?;
        let token_ids = match request.input.ok_or(RequestError::NoInput)? {
            Input::Prompt(text) => admission.tokenize_prompt(text).await?,
            Input::Chat(chat) => admission.tokenize_chat(chat).await?,
        };
        Ok(Response::new(v1::TokenizeResponse { token_ids }))
    }

    async fn detokenize(
        &self,
        request: Request<v1::DetokenizeRequest>,
    ) -> Result<Response<v1::DetokenizeResponse>, Status> {
        let _client = self.enter(&request)?;
        let given = time_given(request.metadata())?;
        let request = request.into_inner();
        let text = Admission::new(&self.0, given)
            .detokenize(&request.model, request.token_ids, request.skip_special)
            .await?;
        Ok(Response::new(v1::DetokenizeResponse { text }))
    }
}
