// Package ruleset puts nftables rules into many namespaces. nft(8) reads the rules as text once; what the kernel made of them
// is read back, and written into every other namespace in one netlink message, which costs a fifth of the time.
package ruleset

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Ruleset is what nft made of a text: netlink messages of one transaction.
type Ruleset struct {
	batch []byte
	last  uint32
}

// kinds are what rules are made of: the request for all that there is, the request that makes one, and the attributes that it needs.
var kinds = []struct {
	get, create uint16
	attributes  map[uint16]bool
}{
	{unix.NFT_MSG_GETTABLE, unix.NFT_MSG_NEWTABLE, attributes(unix.NFTA_TABLE_NAME)},
	{unix.NFT_MSG_GETCHAIN, unix.NFT_MSG_NEWCHAIN, attributes(unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME,
		unix.NFTA_CHAIN_HOOK, unix.NFTA_CHAIN_POLICY, unix.NFTA_CHAIN_TYPE)},
	{unix.NFT_MSG_GETSET, unix.NFT_MSG_NEWSET, attributes(unix.NFTA_SET_TABLE, unix.NFTA_SET_NAME, unix.NFTA_SET_FLAGS,
		unix.NFTA_SET_KEY_TYPE, unix.NFTA_SET_KEY_LEN, unix.NFTA_SET_DESC, unix.NFTA_SET_TIMEOUT, unix.NFTA_SET_USERDATA,
		setExpression, setExpressions)},
	{unix.NFT_MSG_GETRULE, unix.NFT_MSG_NEWRULE, attributes(unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN,
		unix.NFTA_RULE_EXPRESSIONS)},
}

// Learn has nft read the rules in the namespace of the calling thread, which the caller has locked and in which nothing else may be,
// and reads them back. It refuses rules that need more than tables, chains, rules and sets that only the packets fill.
func Learn(rules string) (*Ruleset, error) {
	// A child has the namespaces of the thread that starts it.
	nft := exec.Command("nft", "-f", "-")
	nft.Stdin = strings.NewReader(rules)
	if output, err := nft.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("nft: %w: %s", err, strings.TrimSpace(string(output)))
	}
	made := &Ruleset{}
	made.add(unix.NFNL_MSG_BATCH_BEGIN, unix.AF_UNSPEC, nil)
	for _, kind := range kinds {
		dump := nl.NewNetlinkRequest(int(subsystem|kind.get), unix.NLM_F_DUMP)
		dump.AddRawData(make([]byte, familyBytes))
		messages, err := dump.Execute(unix.NETLINK_NETFILTER, 0)
		if err != nil {
			return nil, fmt.Errorf("nftables: %w", err)
		}
		for _, message := range messages {
			if len(message) < familyBytes {
				return nil, errors.New("nftables: a message without a family")
			}
			kept := only(message[familyBytes:], kind.attributes)
			if kind.create == unix.NFT_MSG_NEWSET {
				if !isFilledByPackets(kept) {
					return nil, errors.New("the rules have a set with elements of its own")
				}
				kept = append(kept, setID(made.last+1)...)
			}
			made.add(subsystem|kind.create, message[0], kept)
		}
	}
	made.add(unix.NFNL_MSG_BATCH_END, unix.AF_UNSPEC, nil)
	return made, nil
}

// Apply writes the rules into the namespace of the calling thread: all of them or none.
func (r *Ruleset) Apply() error {
	socket, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	defer unix.Close(socket)
	timeout := unix.Timeval{Sec: patienceSeconds}
	if err := unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	if err := unix.Sendto(socket, r.batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	// The kernel tells errors of all messages, and then that it has seen the last.
	buffer := make([]byte, replyBytes)
	for {
		count, _, err := unix.Recvfrom(socket, buffer, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("netlink: %w", err)
		}
		messages, err := syscall.ParseNetlinkMessage(buffer[:count])
		if err != nil {
			return fmt.Errorf("netlink: %w", err)
		}
		for _, message := range messages {
			if message.Header.Type != unix.NLMSG_ERROR || len(message.Data) < 4 {
				continue
			}
			if code := int32(binary.LittleEndian.Uint32(message.Data)); code != 0 {
				return fmt.Errorf("nftables: %w", unix.Errno(-code))
			}
			if message.Header.Seq == r.last {
				return nil
			}
		}
	}
}

const (
	subsystem   = unix.NFNL_SUBSYS_NFTABLES << 8
	familyBytes = 4
	replyBytes  = 64 * 1024
	// Limit for a response of the kernel.
	patienceSeconds = 10
	// NFTA_SET_EXPR and NFTA_SET_EXPRESSIONS of linux/netfilter/nf_tables.h.
	setExpression, setExpressions = 17, 18
)

// add appends a message: a header, the family (struct nfgenmsg) and attributes. Messages are numbered, but for the two that begin and end
// the transaction; the last one that is acknowledged is remembered.
func (r *Ruleset) add(kind uint16, family byte, attributes []byte) {
	flags, sequence, resource := uint16(unix.NLM_F_REQUEST), uint32(0), uint16(unix.NFNL_SUBSYS_NFTABLES)
	if kind != unix.NFNL_MSG_BATCH_BEGIN && kind != unix.NFNL_MSG_BATCH_END {
		r.last++
		flags, sequence, resource = flags|unix.NLM_F_CREATE|unix.NLM_F_APPEND|unix.NLM_F_ACK, r.last, 0
	}
	message := make([]byte, unix.NLMSG_HDRLEN+familyBytes)
	binary.LittleEndian.PutUint32(message[0:], uint32(len(message)+len(attributes)))
	binary.LittleEndian.PutUint16(message[4:], kind)
	binary.LittleEndian.PutUint16(message[6:], flags)
	binary.LittleEndian.PutUint32(message[8:], sequence)
	message[unix.NLMSG_HDRLEN] = family
	binary.BigEndian.PutUint16(message[unix.NLMSG_HDRLEN+2:], resource)
	r.batch = append(append(r.batch, message...), attributes...)
}

func attributes(kinds ...uint16) map[uint16]bool {
	kept := map[uint16]bool{}
	for _, kind := range kinds {
		kept[kind] = true
	}
	return kept
}

// only copies the attributes that are to be kept: the rest (handles, counts) is the kernel's own.
func only(data []byte, keep map[uint16]bool) []byte {
	var kept []byte
	for len(data) >= unix.SizeofNlAttr {
		length := int(binary.LittleEndian.Uint16(data))
		kind := binary.LittleEndian.Uint16(data[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
		aligned := (length + unix.NLA_ALIGNTO - 1) &^ (unix.NLA_ALIGNTO - 1)
		if length < unix.SizeofNlAttr || aligned > len(data) {
			break
		}
		if keep[kind] {
			kept = append(kept, data[:aligned]...)
		}
		data = data[aligned:]
	}
	return kept
}

// isFilledByPackets tells whether the attributes are of a set that rules add elements to, and that has none at first.
func isFilledByPackets(set []byte) bool {
	flags := only(set, attributes(unix.NFTA_SET_FLAGS))
	return len(flags) >= unix.SizeofNlAttr+4 && binary.BigEndian.Uint32(flags[unix.SizeofNlAttr:])&unix.NFT_SET_EVAL != 0
}

// setID is an attribute that the kernel demands of each set that is made. It names the set within the transaction.
func setID(id uint32) []byte {
	attribute := make([]byte, unix.SizeofNlAttr+4)
	binary.LittleEndian.PutUint16(attribute, uint16(len(attribute)))
	binary.LittleEndian.PutUint16(attribute[2:], unix.NFTA_SET_ID)
	binary.BigEndian.PutUint32(attribute[unix.SizeofNlAttr:], id)
	return attribute
}
