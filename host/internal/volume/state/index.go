package state

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sort"

	"golang.org/x/sys/unix"

	"releap/host/internal/volume/manifest"
	"releap/host/internal/volume/tree"
)

// Record is an entry, and how it looks on this host.
type Record struct {
	manifest.Entry
	Ino   uint64
	Ctime manifest.Time
	// Unsure: it may have been changed without its ctime showing it, so it must be read again.
	Unsure bool
}

// IsUnchanged says that lstat gives for a file what it gave when the file was read.
func (r *Record) IsUnchanged(stat *tree.Stat) bool {
	return !r.Unsure && r.Type == stat.Type() && r.Ino == stat.Ino && r.Ctime == stat.Ctime && r.Mtime == stat.Mtime && r.Mode == stat.Mode&0o7777 &&
		r.UID == stat.UID && r.GID == stat.GID && (r.Type != manifest.File || r.Size == uint64(stat.Size))
}

const indexVersion = 1

// IndexWriter writes records in order.
type IndexWriter struct {
	file    *os.File
	out     *bufio.Writer
	encoder manifest.Encoder
	numbers map[uint32]uint64
	used    []uint32
	live    map[uint32]uint64
	written uint64
	offsets []uint64 // of the first records of segments
}

// NewIndex creates an index in the state's folder.
func (s *State) NewIndex() (*IndexWriter, error) {
	file, err := os.CreateTemp(s.Folder, indexPrefix+"*")
	if err != nil {
		return nil, err
	}
	w := &IndexWriter{file: file, out: bufio.NewWriterSize(file, 1<<20), numbers: map[uint32]uint64{}, live: map[uint32]uint64{}}
	w.encoder.Index = func(pack uint32) uint64 {
		number, ok := w.numbers[pack]
		if !ok {
			number = uint64(len(w.used))
			w.numbers[pack] = number
			w.used = append(w.used, pack)
		}
		return number
	}
	return w, w.out.WriteByte(indexVersion)
}

// Name of the file in the state's folder.
func (w *IndexWriter) Name() string { return filepath.Base(w.file.Name()) }

// Add writes a record. A pack that it names may still be being written. Begins: it is the first of a segment.
func (w *IndexWriter) Add(record *Record, begins bool) error {
	w.encoder.Bytes = w.encoder.Bytes[:0]
	if begins {
		w.encoder.Reset()
		w.offsets = append(w.offsets, w.written+1)
	}
	w.encoder.Entry(&record.Entry)
	record.EachRef(func(ref *manifest.Ref) { w.live[ref.Pack] += uint64(ref.Length) })
	tail := binary.AppendUvarint(w.encoder.Bytes, record.Ino)
	tail = binary.AppendVarint(tail, record.Ctime.Sec)
	tail = binary.AppendUvarint(tail, uint64(record.Ctime.Nsec))
	unsure := byte(0)
	if record.Unsure {
		unsure = 1
	}
	w.encoder.Bytes = append(tail, unsure)
	w.written += uint64(len(w.encoder.Bytes))
	_, err := w.out.Write(w.encoder.Bytes)
	return err
}

// Finish writes the file out, and gives the parts of a base that describe it.
func (w *IndexWriter) Finish(packs *manifest.Packs, base *Base) error {
	err := w.out.Flush()
	base.Index, base.Offsets = w.Name(), w.offsets
	base.IndexPacks = make([]PackUse, 0, len(w.used))
	for _, number := range w.used {
		pack := packs.Get(number)
		row := manifest.PackRow{Digest: pack.Digest.String(), Bytes: pack.Bytes}
		base.IndexPacks = append(base.IndexPacks, PackUse{row, w.live[number]})
	}
	if closeErr := w.file.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		os.Remove(w.file.Name())
	}
	return err
}

// Abandon removes the file.
func (w *IndexWriter) Abandon() {
	w.file.Close()
	os.Remove(w.file.Name())
}

// Index reads records in order.
type Index struct {
	data    []byte
	numbers []uint32
	offsets []uint64
	decoder manifest.Decoder
	next    int // of offsets
	ended   bool
}

// OpenIndex opens the index of a base, whose packs get numbers in packs. A base without an index has no records.
func (s *State) OpenIndex(base *Base, packs *manifest.Packs) (*Index, error) {
	if base.Index == "" {
		return &Index{ended: true}, nil
	}
	index := &Index{numbers: make([]uint32, 0, len(base.IndexPacks)), offsets: base.Offsets}
	for _, row := range base.IndexPacks {
		digest, err := manifest.ParseDigest(row.Digest)
		if err != nil {
			return nil, err
		}
		index.numbers = append(index.numbers, packs.Number(manifest.Pack{Digest: digest, Bytes: row.Bytes}))
	}
	file, err := os.Open(filepath.Join(s.Folder, base.Index))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() == 0 {
		return nil, fmt.Errorf("%s is empty", file.Name())
	}
	// It is this program's own file, which no one changes: it is replaced as a whole.
	index.data, err = unix.Mmap(int(file.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mapping %s: %w", file.Name(), err)
	}
	if index.data[0] != indexVersion {
		index.Close()
		return nil, fmt.Errorf("%s has version %d: this program knows version %d", file.Name(), index.data[0], indexVersion)
	}
	for i, offset := range base.Offsets {
		if offset >= uint64(len(index.data)) || (i > 0 && offset <= base.Offsets[i-1]) {
			index.Close()
			return nil, fmt.Errorf("%s is damaged", file.Name())
		}
	}
	index.Rewind()
	return index, nil
}

// Rewind begins with the first record again.
func (x *Index) Rewind() {
	x.ended = x.data == nil
	if !x.ended {
		x.decoder, x.next = x.decode(x.data[1:]), 0
	}
}

func (x *Index) decode(data []byte) manifest.Decoder {
	return manifest.Decoder{Bytes: data, Pack: func(index uint64) (uint32, bool) {
		if index >= uint64(len(x.numbers)) {
			return 0, false
		}
		return x.numbers[index], true
	}}
}

// Position is where a record is: in a segment, both counted from 0.
type Position struct{ Segment, Item uint32 }

// Each visits all records, beside those that Next reads.
func (x *Index) Each(visit func(at Position, record *Record) error) error {
	for segment := range x.offsets {
		records, err := x.Segment(uint32(segment))
		if err != nil {
			return err
		}
		for i := range records {
			if err := visit(Position{uint32(segment), uint32(i)}, &records[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// Segment reads the records of one segment.
func (x *Index) Segment(segment uint32) ([]Record, error) {
	end := uint64(len(x.data))
	if int(segment)+1 < len(x.offsets) {
		end = x.offsets[segment+1]
	}
	decoder := x.decode(x.data[x.offsets[segment]:end])
	var records []Record
	for len(decoder.Bytes) > 0 {
		var record Record
		if err := read(&decoder, &record); err != nil {
			return nil, err
		}
		records = append(records, record)
	}
	return records, decoder.Err()
}

// Close unmaps the file.
func (x *Index) Close() {
	if x.data != nil {
		_ = unix.Munmap(x.data)
		x.data, x.ended = nil, true
	}
}

// Find gives the record of a path; nil if there is none.
func (x *Index) Find(path string) (*Record, error) {
	var err error
	after := sort.Search(len(x.offsets), func(i int) bool {
		var first Record
		decoder := x.decode(x.data[x.offsets[i]:])
		if err == nil {
			err = read(&decoder, &first)
		}
		return manifest.Compare(first.Path, path) > 0
	})
	if err != nil || after == 0 {
		return nil, err
	}
	records, err := x.Segment(uint32(after - 1))
	for i := range records {
		if records[i].Path == path {
			return &records[i], nil
		}
	}
	return nil, err
}

// Current is the number of the segment of the record that Next has read.
func (x *Index) Current() uint32 { return uint32(x.next - 1) }

// Next reads the next record into record: false at the end.
func (x *Index) Next(record *Record) (bool, error) {
	if x.ended || len(x.decoder.Bytes) == 0 {
		x.ended = true
		return false, x.decoder.Err()
	}
	if at := uint64(len(x.data) - len(x.decoder.Bytes)); x.next < len(x.offsets) && x.offsets[x.next] == at {
		x.decoder.Reset()
		x.next++
	}
	err := read(&x.decoder, record)
	return err == nil, err
}

func read(decoder *manifest.Decoder, record *Record) error {
	err := decoder.Entry(&record.Entry)
	record.Ino = decoder.Uint(math.MaxUint64)
	record.Ctime.Sec = decoder.Int()
	record.Ctime.Nsec = uint32(decoder.Uint(999_999_999))
	record.Unsure = decoder.Byte() != 0
	if err == nil {
		err = decoder.Err()
	}
	if err != nil {
		return fmt.Errorf("the index of the volume: %w", err)
	}
	return nil
}
