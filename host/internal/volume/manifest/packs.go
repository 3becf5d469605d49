package manifest

// Packs numbers the packs that entries in memory refer to.
type Packs struct {
	numbers map[Digest]uint32
	known   []Pack
}

// Pack is a blob of chunks. Its digest is not known while it is being written.
type Pack struct {
	Digest Digest
	Bytes  uint64
}

// NewPacks gives an empty table.
func NewPacks() *Packs { return &Packs{numbers: map[Digest]uint32{}} }

// Number gives the number of a pack; a new one if it was not known.
func (p *Packs) Number(pack Pack) uint32 {
	if number, ok := p.numbers[pack.Digest]; ok {
		if p.known[number].Bytes == 0 {
			p.known[number].Bytes = pack.Bytes
		}
		return number
	}
	number := p.Reserve()
	p.Set(number, pack)
	return number
}

// Reserve gives a number for a pack that is about to be written.
func (p *Packs) Reserve() uint32 {
	p.known = append(p.known, Pack{})
	return uint32(len(p.known) - 1)
}

// Set says which pack has a reserved number. Another number may have the same content: both are of use.
func (p *Packs) Set(number uint32, pack Pack) {
	p.known[number] = pack
	if _, ok := p.numbers[pack.Digest]; !ok {
		p.numbers[pack.Digest] = number
	}
}

// Get gives the pack of a number.
func (p *Packs) Get(number uint32) Pack { return p.known[number] }

// Len is one more than the largest number.
func (p *Packs) Len() int { return len(p.known) }
