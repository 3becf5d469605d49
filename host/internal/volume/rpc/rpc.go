// Package rpc is how a command asks who runs it for packs, or to take packs away: `{"fetch":{"digest","bytes"}}` or
// `{"store":{"digest","bytes"}}` in a line of its standard output, and the digest in a line of its standard input once the pack is in the
// folder of packs, or is stored. Answers may come in any order.
package rpc

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"releap/host/internal/volume/manifest"
)

// Blob is a blob for people and programs. Digest is `sha256:` and 64 hexadecimal digits.
type Blob struct {
	Digest string `json:"digest"`
	Bytes  uint64 `json:"bytes"`
}

// BlobOf gives a pack as a blob.
func BlobOf(pack manifest.Pack) Blob { return Blob{"sha256:" + pack.Digest.String(), pack.Bytes} }

// Peer is who runs the command.
type Peer struct {
	in  *bufio.Scanner
	out *json.Encoder
	// What was asked for and not answered.
	open map[manifest.Digest]bool
}

// ErrPeerClosed: the other side has closed the command's standard input, and a request is not answered.
var ErrPeerClosed = errors.New("standard input was closed: the pack is missing, or not stored")

// New gives the peer at the other ends of standard input and output.
func New(in io.Reader, out io.Writer) *Peer {
	return &Peer{in: bufio.NewScanner(in), out: json.NewEncoder(out), open: map[manifest.Digest]bool{}}
}

// Fetch asks for a pack, once until it is there.
func (p *Peer) Fetch(pack manifest.Pack) error {
	if p.open[pack.Digest] {
		return nil
	}
	p.open[pack.Digest] = true
	return p.out.Encode(struct {
		Fetch Blob `json:"fetch"`
	}{BlobOf(pack)})
}

// Store asks to store a pack that is in the folder of new packs.
func (p *Peer) Store(pack manifest.Pack) error {
	p.open[pack.Digest] = true
	return p.out.Encode(struct {
		Store Blob `json:"store"`
	}{BlobOf(pack)})
}

// Await waits until what was asked for a pack is done.
func (p *Peer) Await(pack manifest.Pack) error {
	for p.open[pack.Digest] {
		if !p.in.Scan() {
			if err := p.in.Err(); err != nil {
				return fmt.Errorf("reading standard input: %w", err)
			}
			return fmt.Errorf("%w: %s", ErrPeerClosed, pack.Digest)
		}
		digest, err := manifest.ParseDigest(p.in.Text())
		if err != nil {
			return fmt.Errorf("standard input: %w", err)
		}
		delete(p.open, digest)
	}
	return nil
}
