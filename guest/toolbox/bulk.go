package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"regexp"
	"strings"
	"syscall"

	"releap/guest/internal/process"
)

const (
	filesMax  = 100_000 // of one bulk request
	errorsMax = 20      // that an answer names
	pathMax   = 4096
)

// fieldName is `files[3].path` or `files[3].file`, as the SDKs name the parts of a bulk upload.
var fieldName = regexp.MustCompile(`^files\[(\d{1,6})\]\.(path|file)$`)

// bulkUpload writes the files of a multipart form. The field `files[i].path` precedes the file `files[i].file`. Each file appears
// whole or not at all; one that fails does not keep the others from being written.
func bulkUpload(c *call) error {
	owner, err := c.user()
	if err != nil {
		return err
	}
	kind, params, err := mime.ParseMediaType(c.r.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" || params["boundary"] == "" {
		return badRequest("the body must be multipart/form-data, with files[i].path before each files[i].file")
	}
	upload := &upload{call: c, owner: owner, paths: map[string]string{}}
	form := multipart.NewReader(bufio.NewReaderSize(c.r.Body, copyBuffer), params["boundary"])
	for {
		part, err := form.NextPart()
		if err == io.EOF {
			break
		}
		if err == nil {
			err = upload.take(part)
		}
		if err != nil {
			return badRequest("the upload was cut off or is malformed after %d files: %v", upload.written, err)
		}
	}
	return upload.answer()
}

type upload struct {
	*call
	owner   process.User
	paths   map[string]string // of files that follow
	written int
	failed  []error
	others  int // failures that are not in `failed`
}

// take reads one part. Its error is one of the body, after which nothing more can be read.
func (u *upload) take(part *multipart.Part) error {
	name := fieldName.FindStringSubmatch(part.FormName())
	if name == nil {
		return fmt.Errorf("unknown part %q", part.FormName())
	}
	if u.written+len(u.failed)+u.others >= filesMax || len(u.paths) >= filesMax {
		return fmt.Errorf("more than %d files", filesMax)
	}
	index := name[1]
	if name[2] == "path" {
		text, err := io.ReadAll(io.LimitReader(part, pathMax+1))
		if err != nil {
			return err
		}
		u.paths[index] = string(text)
		return nil
	}
	given, ok := u.paths[index]
	if !ok {
		return fmt.Errorf("files[%s].path does not precede files[%s].file", index, index)
	}
	delete(u.paths, index)
	content := &watched{Reader: part}
	target, err := u.absolute(given)
	if err == nil {
		err = atPath(given, writeFile(target, u.owner, content))
	}
	if err == nil {
		u.written++
		return nil
	}
	if content.err != nil {
		return content.err
	}
	if len(u.failed) < errorsMax {
		u.failed = append(u.failed, err)
	} else {
		u.others++
	}
	return nil // NextPart skips what was not read, so that the client gets to read the answer
}

func (u *upload) answer() error {
	switch {
	case len(u.paths) > 0:
		return badRequest("%d paths have no file", len(u.paths))
	case u.written+len(u.failed) == 0:
		return badRequest("the form has no file: files[i].path and files[i].file are expected")
	case len(u.failed) == 0:
		return u.send(http.StatusOK, object{"files": u.written})
	}
	status, _ := statusOf(u.failed[0])
	texts := make([]string, 0, len(u.failed)+1)
	for _, err := range u.failed {
		texts = append(texts, err.Error())
	}
	if u.others > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", u.others))
	}
	return &failure{status, strings.Join(texts, "; ")}
}

// watched remembers an error of its reader, to tell it from one of the file that is written.
type watched struct {
	io.Reader
	err error
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	if err != nil && err != io.EOF {
		w.err = err
	}
	return n, err
}

// bulkDownload sends files as the parts of a form. A file that cannot be read is a part `error` with JSON in it.
func bulkDownload(c *call) error {
	var body struct {
		Paths []string `json:"paths"`
	}
	if err := c.body(&body); err != nil {
		return err
	}
	if len(body.Paths) == 0 || len(body.Paths) > filesMax {
		return badRequest("paths must have 1 to %d entries", filesMax)
	}
	out := bufio.NewWriterSize(c.w, copyBuffer)
	form := multipart.NewWriter(out)
	c.w.Header().Set("Content-Type", "multipart/form-data; boundary="+form.Boundary())
	c.w.WriteHeader(http.StatusOK)
	buffer := make([]byte, copyBuffer)
	for _, given := range body.Paths {
		if err := c.sendFile(form, given, buffer); err != nil {
			// A broken response says that it is not complete.
			panic(http.ErrAbortHandler)
		}
	}
	if form.Close() != nil || out.Flush() != nil {
		panic(http.ErrAbortHandler)
	}
	return nil
}

// sendFile returns an error when the response cannot be continued.
func (c *call) sendFile(form *multipart.Writer, given string, buffer []byte) error {
	file, size, err := c.openFile(given)
	if err != nil {
		body := describe(err)
		data, _ := json.Marshal(body)
		part, err := form.CreatePart(textproto.MIMEHeader{
			"Content-Disposition": {disposition("error", given)},
			"Content-Type":        {"application/json"},
		})
		if err == nil {
			_, err = part.Write(data)
		}
		return err
	}
	defer file.Close()
	header := textproto.MIMEHeader{
		"Content-Disposition": {disposition("file", given)},
		"Content-Type":        {"application/octet-stream"},
	}
	// Files of /proc have no size but content.
	if size > 0 {
		header.Set("Content-Length", fmt.Sprint(size))
	}
	part, err := form.CreatePart(header)
	if err != nil {
		return err
	}
	if size == 0 {
		_, err = io.CopyBuffer(part, readerOnly{file}, buffer)
		return err
	}
	// A file that grows meanwhile is cut to the announced size.
	sent, err := io.CopyBuffer(part, readerOnly{io.LimitReader(file, size)}, buffer)
	if err == nil && sent < size {
		err = io.ErrUnexpectedEOF
	}
	return err
}

type readerOnly struct{ io.Reader }

// openFile opens a regular file to read. Opening a FIFO does not block.
func (c *call) openFile(given string) (*os.File, int64, error) {
	path, err := c.absolute(given)
	if err != nil {
		return nil, 0, err
	}
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, atPath(given, err)
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = badRequest("%s: only files can be downloaded", given)
	}
	if err != nil {
		file.Close()
		return nil, 0, atPath(given, err)
	}
	return file, info.Size(), nil
}

// disposition names a part. Names that are not plain ASCII are encoded as RFC 5987 says. Clients that know only `filename`
// decode UTF-8, and then the bytes of the Latin-1 characters once more: for them the name is encoded twice.
func disposition(name, file string) string {
	plain, printable := true, true
	for i := 0; i < len(file); i++ {
		printable = printable && file[i] >= ' ' && file[i] != 0x7f
		plain = plain && file[i] < 0x7f && file[i] != '"' && file[i] != '\\' && file[i] != '%'
	}
	if plain && printable {
		return fmt.Sprintf(`form-data; name="%s"; filename="%s"`, name, file)
	}
	extended := fmt.Sprintf(`form-data; name="%s"; filename*=UTF-8''%s`, name, strings.ReplaceAll(url.QueryEscape(file), "+", "%20"))
	if !printable {
		return extended
	}
	twice := make([]rune, len(file))
	for i := 0; i < len(file); i++ {
		twice[i] = rune(file[i])
	}
	return fmt.Sprintf(`%s; filename="%s"`, extended, strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(string(twice)))
}
