module releap/host

go 1.19

require (
	github.com/vishvananda/netlink v1.3.0
	golang.org/x/sys v0.15.0
)

require github.com/vishvananda/netns v0.0.4 // indirect
