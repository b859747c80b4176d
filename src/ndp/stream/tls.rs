//! TLS 1.3 with raw public keys (RFC 7250): a key is compared with the one of the address, so there are no
//! certificates, names or dates that somebody would have to keep right.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, PeerIncompatible, ServerConfig,
    ServerConnection, SignatureScheme,
};

use crate::secret::ServerKey;

/// The protocol that both sides name (ALPN). A version that the other side cannot speak gets another name.
const PROTOCOL: &[u8] = b"sparktune-ndp/1";
/// The label of the bytes that only the two ends of a connection know.
pub(super) const BINDING: &[u8] = b"EXPORTER-sparktune-ndp-token";
/// What precedes the 32 bytes of an Ed25519 seed in PKCS #8 (RFC 8410, section 7).
const PKCS8_ED25519: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
/// What precedes the 32 bytes of an Ed25519 public key in its SubjectPublicKeyInfo (RFC 8410, section 4).
const SPKI_ED25519: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// The error with which a client ends a handshake with another server than it wants.
pub(super) fn wrong_key() -> rustls::Error {
    CertificateError::ApplicationVerificationFailure.into()
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn signing_key(key: &ServerKey) -> Arc<dyn SigningKey> {
    let der = [PKCS8_ED25519.as_slice(), key.seed()].concat();
    ring::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(der)).expect("32 bytes are a seed of Ed25519")
}

fn spki(key: &ServerKey) -> Vec<u8> {
    signing_key(key).public_key().expect("ring knows the public half").as_ref().to_vec()
}

impl ServerKey {
    /// Returns the public half, which is part of the address.
    pub fn public(&self) -> [u8; 32] {
        let spki = spki(self);
        spki[SPKI_ED25519.len()..].try_into().expect("an Ed25519 key has 32 bytes")
    }
}

/// Returns the configuration of the server's side.
pub(super) fn server_config(key: &ServerKey) -> Arc<ServerConfig> {
    let certified = CertifiedKey::new(vec![CertificateDer::from(spki(key))], signing_key(key));
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .expect("ring speaks TLS 1.3")
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::new(certified))));
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    // Each connection proves the token anew, so no session is continued.
    config.send_tls13_tickets = 0;
    Arc::new(config)
}

pub(super) fn server(config: &Arc<ServerConfig>) -> Result<ServerConnection, rustls::Error> {
    ServerConnection::new(Arc::clone(config))
}

/// Returns the client's side of a connection to the server with this public key.
pub(super) fn client(key: [u8; 32]) -> Result<ClientConnection, rustls::Error> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .expect("ring speaks TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Pinned { key, provider: provider() }))
        .with_no_client_auth();
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    config.enable_sni = false;
    config.resumption = rustls::client::Resumption::disabled();
    let name = ServerName::try_from("ndp.invalid").expect("this is a name");
    ClientConnection::new(Arc::new(config), name)
}

/// Accepts one public key and nothing else.
#[derive(Debug)]
struct Pinned {
    key: [u8; 32],
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let wanted = [SPKI_ED25519.as_slice(), &self.key].concat();
        if end_entity.as_ref() == wanted { Ok(ServerCertVerified::assertion()) } else { Err(wrong_key()) }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(PeerIncompatible::ServerDoesNotSupportTls12Or13.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(message, &key, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
