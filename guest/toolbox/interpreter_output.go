package main

import "unicode/utf8"

// sendOutput sends what the code writes as text. Characters that are cut between two reads are put together.
func sendOutput(s *socket, from *output) {
	r := from.read()
	defer r.close()
	held := map[byte][]byte{}
	for {
		chunks, ok := r.take(s.gone)
		if !ok || len(chunks) == 0 {
			for stream, rest := range held {
				sendText(s, stream, rest)
			}
			return
		}
		for _, one := range chunks {
			data := append(held[one.stream], one.data...)
			whole := len(data) - cutRune(data)
			held[one.stream] = append([]byte(nil), data[whole:]...)
			sendText(s, one.stream, data[:whole])
		}
	}
}

func sendText(s *socket, stream byte, data []byte) {
	if len(data) > 0 {
		_ = s.sendJSON(interpreterMessage{Type: map[byte]string{stdout: "stdout", stderr: "stderr"}[stream], Text: string(data)})
	}
}

// cutRune is how many bytes at the end are the beginning of a character.
func cutRune(data []byte) int {
	for back := 1; back < utf8.UTFMax && back <= len(data); back++ {
		if b := data[len(data)-back]; utf8.RuneStart(b) {
			if b >= utf8.RuneSelf && !utf8.FullRune(data[len(data)-back:]) {
				return back
			}
			return 0
		}
	}
	return 0
}
