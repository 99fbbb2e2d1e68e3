//! The certificate of a server, from PEM files.

use std::path::Path;
use std::sync::Arc;

use girih::{Error, Result};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The maximum bytes of a file of certificates, or of a key.
const MAX_PEM_BYTES: u64 = 1 << 20;

/// What accepts TLS connections with the certificates in `certificates` (the server's first) and
/// the private key in `key`: PEM files.
///
/// # Errors
/// When a file cannot be read, has no certificate or key, or the key is not the certificate's;
/// and when other users can read or change the key.
pub fn load(certificates: &Path, key: &Path) -> Result<TlsAcceptor> {
    let of_certificates = |error: String| Error::new(error).of(certificates.display());
    let of_key = |error: String| Error::new(error).of(key.display());
    let pem = girih::tools::read_small(certificates, MAX_PEM_BYTES)?;
    let chain = CertificateDer::pem_slice_iter(&pem).collect::<std::result::Result<Vec<_>, _>>();
    let chain =
        chain.map_err(|error| of_certificates(format!("has a certificate that is no PEM: {error}")))?;
    if chain.is_empty() {
        return Err(of_certificates("has no certificate; a PEM file is needed".to_owned()));
    }
    let pem = girih::tools::read_secret(key, MAX_PEM_BYTES)?;
    let private = PrivateKeyDer::from_pem_slice(&pem);
    let private = private.map_err(|error| of_key(format!("has no private key in PEM: {error}")))?;
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|error| of_key(format!("does not belong to the certificate: {error}")))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
