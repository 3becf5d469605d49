// Command storemount mounts an object store in a sandbox with rclone, over FUSE. The agent starts one for each mount. Its
// configuration is a line of JSON on its standard input; on its standard output it says "mounted", "busy" (files are open),
// "pending N" (files are not uploaded) or "error: REASON", a line each.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	_ "github.com/rclone/rclone/backend/local" // of files that are to be uploaded
	_ "github.com/rclone/rclone/backend/s3"
	_ "github.com/rclone/rclone/cmd/mount2" // its requests carry up to 1 MiB
	"github.com/rclone/rclone/cmd/mountlib"
	"github.com/rclone/rclone/fs"
	rclone "github.com/rclone/rclone/fs/config"
	"github.com/rclone/rclone/fs/rc"
	"github.com/rclone/rclone/vfs"
	"github.com/rclone/rclone/vfs/vfscommon"
	"golang.org/x/sys/unix"
)

// configuration of one mount. Bucket and keys are those of the store; the endpoint is the host's proxy, for which the
// credentials are.
type configuration struct {
	Path         string `json:"path"`
	Endpoint     string `json:"endpoint"`
	Bucket       string `json:"bucket"`
	Prefix       string `json:"prefix"`
	Region       string `json:"region"`
	Provider     string `json:"provider"`
	AccessKey    string `json:"access_key"`
	SecretKey    string `json:"secret_key"`
	ReadOnly     bool   `json:"read_only"`
	DirCacheSecs int    `json:"dir_cache_secs"`
}

const (
	configMaxBytes = 64 * 1024
	// stateDir holds files that are written until they are uploaded.
	stateDir = "/var/cache/releap-stores"
	// defaultDirCache is how long lists of folders are kept unless the store says otherwise.
	defaultDirCache = time.Minute
	// An endpoint that does not respond ends each operation within about a minute.
	connectTimeout  = 10 * time.Second
	silenceTimeout  = 30 * time.Second
	lowLevelRetries = 3
	// uploadsDeadline bounds the wait for uploads before an unmount, and uploadsAtEnd that at the end of the sandbox.
	uploadsDeadline = 10 * time.Second
	uploadsAtEnd    = 8 * time.Second
	look            = 20 * time.Millisecond
	// writeBack is how long after its close a file is uploaded. What failed is tried again until it succeeds.
	writeBack = 50 * time.Millisecond
	// settled: the kernel has told of files that were closed, and their uploads are queued.
	settled = 2 * writeBack
	// softMemory makes the collector work harder before the sandbox runs out of memory.
	softMemory = 96 << 20
)

func main() {
	debug.SetMemoryLimit(softMemory)
	// It is executed from a file in memory, after which the kernel would name it.
	_ = os.WriteFile("/proc/self/comm", []byte("storemount"), 0)
	log.SetOutput(&bounded{out: os.Stderr, left: 256 * 1024})
	if err := run(); err != nil {
		say("error: " + strings.ReplaceAll(err.Error(), "\n", " "))
		os.Exit(1)
	}
}

func say(line string) { fmt.Println(line) }

func run() error {
	c, err := readConfiguration(os.Stdin)
	if err != nil {
		return err
	}
	// Of a mount whose process has died.
	if _, err := os.Lstat(c.Path); errors.Is(err, unix.ENOTCONN) {
		_ = unix.Unmount(c.Path, unix.MNT_DETACH)
	}
	if err := os.MkdirAll(c.Path, 0o755); err != nil {
		return err
	}
	// Before the mount: a signal at any time after it ends it in order.
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGUSR2)
	// At the end of the sandbox all processes get SIGTERM: others may still write until they have ended.
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGPIPE, syscall.SIGTERM)
	point, err := c.mount()
	if err != nil {
		return err
	}
	say("mounted")
	for {
		select {
		case err := <-point.ErrChan: // a program in the sandbox has unmounted it
			return err
		case got := <-signals:
			if got == syscall.SIGUSR2 {
				finishUploads(point.VFS, uploadsAtEnd)
				return unix.Unmount(c.Path, unix.MNT_DETACH)
			}
			// What a later mount of the same bucket would not know of would be lost.
			if left := finishUploads(point.VFS, uploadsDeadline); left > 0 {
				say(fmt.Sprintf("pending %d", left))
				continue
			}
			switch err := unix.Unmount(c.Path, unix.UMOUNT_NOFOLLOW); {
			case err == nil:
				return nil
			case errors.Is(err, unix.EBUSY):
				say("busy")
			default:
				return err
			}
		}
	}
}

func readConfiguration(in io.Reader) (c configuration, err error) {
	line, err := bufio.NewReader(io.LimitReader(in, configMaxBytes)).ReadBytes('\n')
	if err != nil {
		return c, fmt.Errorf("the configuration is incomplete: %w", err)
	}
	if err := json.Unmarshal(line, &c); err != nil {
		return c, err
	}
	if !filepath.IsAbs(c.Path) || c.Bucket == "" || c.Endpoint == "" {
		return c, errors.New("the configuration needs path, bucket and endpoint")
	}
	return c, nil
}

// remote in rclone's syntax. The slash at its end says that the prefix is a folder: rclone does not ask the server then.
func (c *configuration) remote() string {
	var b strings.Builder
	b.WriteString(":s3")
	option := func(name, value string) {
		b.WriteString("," + name + `="` + strings.ReplaceAll(value, `"`, `""`) + `"`)
	}
	option("provider", c.Provider)
	option("endpoint", c.Endpoint)
	option("region", c.Region)
	option("access_key_id", c.AccessKey)
	option("secret_access_key", c.SecretKey)
	option("force_path_style", "true")
	option("no_check_bucket", "true")
	b.WriteString(":" + c.Bucket + "/")
	if c.Prefix != "" {
		b.WriteString(c.Prefix + "/")
	}
	return b.String()
}

func (c *configuration) mount() (*mountlib.MountPoint, error) {
	ctx := context.Background()
	settings := fs.GetConfig(ctx)
	settings.ConnectTimeout, settings.Timeout = connectTimeout, silenceTimeout
	settings.LowLevelRetries = lowLevelRetries
	settings.UseServerModTime = true // else the list of a folder costs a request a file
	settings.LogLevel = fs.LogLevelError
	settings.BufferSize = 4 * fs.Mebi
	settings.UseMmap = true                          // buffers of reads are given back soon, and are no work for the collector
	if err := rclone.SetConfigPath(""); err != nil { // in memory
		return nil, err
	}
	if err := rclone.SetCacheDir(stateDir); err != nil {
		return nil, err
	}
	remote, err := fs.NewFs(ctx, c.remote())
	if err != nil {
		return nil, err
	}
	options := mountlib.DefaultOpt
	options.AllowOther, options.AllowNonEmpty = true, true
	files := vfscommon.DefaultOpt
	files.ReadOnly = c.ReadOnly
	files.UID, files.GID = 0, 0
	files.PollInterval = 0
	// A checksum would only be compared at the end of a file that was read from its start in order, when its reader has the bytes.
	files.NoChecksum = true
	files.DirCacheTime = defaultDirCache
	if c.DirCacheSecs > 0 {
		files.DirCacheTime = time.Duration(c.DirCacheSecs) * time.Second
	}
	if !c.ReadOnly {
		// Programs may write anywhere in a file; it is uploaded when it is closed.
		files.CacheMode = vfscommon.CacheModeWrites
		files.WriteBack = writeBack
		files.CacheMaxAge, files.CachePollInterval = time.Minute, 30*time.Second
	}
	kernel, err := connect(c.Path, c.Bucket, c.ReadOnly)
	if err != nil {
		return nil, err
	}
	_, mount := mountlib.ResolveMountMethod("mount2")
	point := mountlib.NewMountPoint(mount, kernel, remote, &options, &files)
	if _, err := point.Mount(); err != nil {
		_ = unix.Unmount(c.Path, unix.MNT_DETACH)
		return nil, err
	}
	if err := readAhead(c.Path); err != nil {
		log.Printf("the mount reads ahead less than it could: %v", err)
	}
	if !c.ReadOnly && point.VFS.Opt.CacheMode != vfscommon.CacheModeWrites {
		_ = unix.Unmount(c.Path, unix.MNT_DETACH)
		return nil, errors.New("files cannot be written to " + stateDir)
	}
	return point, nil
}

// finishUploads waits until nothing is to be uploaded, or the time is over. It returns how many files are left.
func finishUploads(v *vfs.VFS, most time.Duration) int {
	time.Sleep(settled)
	for end := time.Now().Add(most); ; time.Sleep(look) {
		stats, ok := v.Stats()["diskCache"].(rc.Params)
		if !ok { // it is mounted read-only
			return 0
		}
		running, _ := stats["uploadsInProgress"].(int)
		queued, _ := stats["uploadsQueued"].(int)
		if left := running + queued; left == 0 || time.Now().After(end) {
			return left
		}
	}
}

// bounded passes on so many bytes, and drops what follows.
type bounded struct {
	out  io.Writer
	left int
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.left >= len(p) {
		b.left -= len(p)
		_, _ = b.out.Write(p)
	}
	return len(p), nil
}
