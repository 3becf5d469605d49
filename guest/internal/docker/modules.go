package docker

// Modules that a container engine and its networks need in every case, with the iptables of nf_tables and the legacy one. The
// kernel asks the image's modprobe for others, and an image need not have one.
var Modules = []string{
	"overlay", "veth", "br_netfilter",
	"nft_compat", "nft_chain_nat", "iptable_filter", "iptable_nat", "nf_conntrack_netlink",
	"xt_addrtype", "xt_conntrack", "xt_MASQUERADE", "xt_nat", "xt_tcpudp",
}
