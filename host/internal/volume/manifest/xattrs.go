package manifest

import (
	"encoding/binary"
	"sort"
)

// Xattr is an extended attribute.
type Xattr struct {
	Name  string
	Value []byte
}

// EncodeXattrs gives the block of a set of attributes: a count, and by name: length, name, length, value. None give nil.
func EncodeXattrs(xattrs []Xattr) []byte {
	if len(xattrs) == 0 {
		return nil
	}
	sort.Slice(xattrs, func(i, j int) bool { return xattrs[i].Name < xattrs[j].Name })
	block := binary.AppendUvarint(nil, uint64(len(xattrs)))
	for _, xattr := range xattrs {
		block = binary.AppendUvarint(block, uint64(len(xattr.Name)))
		block = append(block, xattr.Name...)
		block = binary.AppendUvarint(block, uint64(len(xattr.Value)))
		block = append(block, xattr.Value...)
	}
	return block
}

// DecodeXattrs reads a block. Values are those of the block itself.
func DecodeXattrs(block []byte) ([]Xattr, error) {
	if len(block) == 0 {
		return nil, nil
	}
	d := &Decoder{Bytes: block}
	count := d.Uint(uint64(len(block)))
	xattrs := []Xattr{}
	for ; count > 0 && d.err == nil; count-- {
		name := string(d.Take(d.Uint(255)))
		xattrs = append(xattrs, Xattr{Name: name, Value: d.Take(d.Uint(1 << 16))})
	}
	if d.err == nil && len(d.Bytes) > 0 {
		d.fail()
	}
	return xattrs, d.err
}
