// Command rclone with what the measurement of object stores needs of it, from the modules of guest/storemount.
package main

import (
	_ "github.com/rclone/rclone/backend/local"
	_ "github.com/rclone/rclone/backend/s3"
	"github.com/rclone/rclone/cmd"
	_ "github.com/rclone/rclone/cmd/cat"
)

func main() { cmd.Main() }
