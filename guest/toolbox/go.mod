module releap/guest/toolbox

go 1.19

require (
	github.com/gorilla/websocket v1.5.3
	golang.org/x/sys v0.15.0
	releap/guest v0.0.0
)

replace releap/guest => ../
