// Package lines keeps values in files of JSON, one in a line. A line that a crash or a full disk has cut off is as if it had never
// been written.
package lines

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Writer writes to the end of a file.
type Writer struct {
	path string
	file *os.File
	out  *bufio.Writer
}

// Append opens a file, which is created, to write to its end. What is cut off there is removed.
func Append(path string) (*Writer, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	end, err := wholeLines(file)
	if err == nil {
		err = file.Truncate(end)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return &Writer{path, file, bufio.NewWriter(file)}, nil
}

// wholeLines gives the length of a file without a last line that has no end.
func wholeLines(file *os.File) (int64, error) {
	end, err := file.Seek(0, io.SeekEnd)
	buffer := make([]byte, 64*1024)
	for err == nil && end > 0 {
		from := end - int64(len(buffer))
		if from < 0 {
			from = 0
		}
		part := buffer[:end-from]
		if _, err = file.ReadAt(part, from); err != nil {
			break
		}
		if last := bytes.LastIndexByte(part, '\n'); last >= 0 {
			return from + int64(last) + 1, nil
		}
		end = from
	}
	return end, err
}

// Replace begins a file that takes the place of another one at Finish.
func Replace(path string) (*Writer, error) {
	file, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	return &Writer{path, file, bufio.NewWriterSize(file, 64*1024)}, nil
}

// Finish makes what was begun by Replace the file, durably. The writer may be used on.
func (w *Writer) Finish() error {
	if err := w.Sync(); err != nil {
		return err
	}
	if err := os.Rename(w.path+".new", w.path); err != nil {
		return err
	}
	folder, err := os.Open(filepath.Dir(w.path))
	if err != nil {
		return err
	}
	defer folder.Close()
	return folder.Sync()
}

// Add writes a value, at Flush or before.
func (w *Writer) Add(value interface{}) error {
	data, err := json.Marshal(value)
	if err == nil {
		_, err = w.out.Write(append(data, '\n'))
	}
	return err
}

// Flush writes what was added. It survives the end of this process.
func (w *Writer) Flush() error { return w.out.Flush() }

// Sync makes it durable, too.
func (w *Writer) Sync() error {
	if err := w.out.Flush(); err != nil {
		return err
	}
	return w.file.Sync()
}

// Close does not write what was not flushed.
func (w *Writer) Close() { w.file.Close() }

// Stop ends Read.
var Stop = errors.New("no more lines are wanted")

// Read visits the lines of a file, if it exists.
func Read(path string, visit func(line []byte) error) error {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	for in := bufio.NewReaderSize(file, 256*1024); ; {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = visit(line)
		}
		if errors.Is(err, Stop) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
