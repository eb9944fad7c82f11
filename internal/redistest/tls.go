package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// StartTLS starts a server that also speaks TLS, at the address that it returns,
// with a certificate that clients with the returned configuration trust. The args
// are as those of [Start]. It needs a redis-server that was built with TLS, as those of
// distributions are; without, the start fails.
func StartTLS(t testing.TB, args ...string) (s *Server, addr string, client *tls.Config) {
	t.Helper()
	dir := t.TempDir()
	pool := writeCertificate(t, dir)
	port := strconv.Itoa(freePort(lastPort))
	s = Start(t, append([]string{
		"--tls-port", port,
		"--tls-cert-file", filepath.Join(dir, "cert.pem"),
		"--tls-key-file", filepath.Join(dir, "key.pem"),
		"--tls-ca-cert-file", filepath.Join(dir, "cert.pem"),
		"--tls-auth-clients", "no",
	}, args...)...)
	return s, net.JoinHostPort("127.0.0.1", port), &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
}

// writeCertificate makes a certificate for 127.0.0.1, its own authority.
func writeCertificate(t testing.TB, dir string) *x509.CertPool {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Fatal("redistest: make a certificate:", err)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "redistest"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	must(err)
	write := func(name, kind string, der []byte) {
		must(os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	}
	write("cert.pem", "CERTIFICATE", der)
	write("key.pem", "PRIVATE KEY", keyDER)
	cert, err := x509.ParseCertificate(der)
	must(err)
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return pool
}
