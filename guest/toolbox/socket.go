package main

import (
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

const (
	messageMax   = 1 << 20
	pingInterval = 30 * time.Second
	// A client that answers no ping for this long is gone.
	silenceMax    = 90 * time.Second
	writePatience = 30 * time.Second
	reasonMax     = 123 // bytes of a close frame's reason (RFC 6455, 5.5)
)

// socket is a WebSocket whose writes are serialized and bounded in time.
type socket struct {
	conn *websocket.Conn
	mu   sync.Mutex
	gone chan struct{} // closed when the client is
	once sync.Once
}

// upgrade accepts a WebSocket. The first subprotocol that a client names is echoed, but for one with an environment: clients
// that offer some refuse a response without one.
func (c *call) upgrade() (*socket, error) {
	if !websocket.IsWebSocketUpgrade(c.r) {
		return nil, fail(http.StatusUpgradeRequired, "%s %s is a WebSocket", c.r.Method, c.r.URL.Path)
	}
	upgrader := websocket.Upgrader{
		ReadBufferSize: 32 << 10, WriteBufferSize: 32 << 10,
		Subprotocols: echoable(websocket.Subprotocols(c.r)),
		// The gateway has checked the credential, which is no cookie.
		CheckOrigin: func(*http.Request) bool { return true },
		Error: func(w http.ResponseWriter, _ *http.Request, status int, reason error) {
			sendError(w, fail(status, "%v", reason))
		},
	}
	conn, err := upgrader.Upgrade(c.w, c.r, nil)
	if err != nil {
		return nil, errAnswered
	}
	conn.SetReadLimit(messageMax)
	s := &socket{conn: conn, gone: make(chan struct{})}
	_ = conn.SetReadDeadline(time.Now().Add(silenceMax))
	conn.SetPongHandler(func(string) error { return conn.SetReadDeadline(time.Now().Add(silenceMax)) })
	go s.ping()
	return s, nil
}

func echoable(offered []string) (names []string) {
	for _, name := range offered {
		if !strings.HasPrefix(name, envsOffer) {
			names = append(names, name)
		}
	}
	return names
}

func (s *socket) ping() {
	ticker := time.NewTicker(pingInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if s.conn.WriteControl(websocket.PingMessage, nil, time.Now().Add(writePatience)) != nil {
				s.leave()
				return
			}
		case <-s.gone:
			return
		}
	}
}

// leave closes the connection without a close frame.
func (s *socket) leave() {
	s.once.Do(func() {
		close(s.gone)
		s.conn.Close()
	})
}

// receive calls handle for each message until the client is gone or handle fails.
func (s *socket) receive(handle func(kind int, data []byte) error) {
	defer s.leave()
	for {
		kind, data, err := s.conn.ReadMessage()
		if err != nil || handle(kind, data) != nil {
			return
		}
		_ = s.conn.SetReadDeadline(time.Now().Add(silenceMax))
	}
}

func (s *socket) send(kind int, data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.conn.SetWriteDeadline(time.Now().Add(writePatience))
	err := s.conn.WriteMessage(kind, data)
	if err != nil {
		s.leave()
	}
	return err
}

func (s *socket) sendJSON(body interface{}) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.conn.SetWriteDeadline(time.Now().Add(writePatience))
	err := s.conn.WriteJSON(body)
	if err != nil {
		s.leave()
	}
	return err
}

// finish sends a close frame, waits shortly for that of the client, and closes.
func (s *socket) finish(code int, reason string) {
	if len(reason) > reasonMax {
		reason = reason[:reasonMax]
	}
	_ = s.conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, reason), time.Now().Add(writePatience))
	select {
	case <-s.gone:
	case <-time.After(5 * time.Second):
		s.leave()
	}
}
