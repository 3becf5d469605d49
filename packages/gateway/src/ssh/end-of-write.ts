/**
 * The channel request `eow@openssh.com` (OpenSSH's PROTOCOL, 2.1): the client reads no more output, as when `ssh … | head` has
 * seen enough. ssh2 1.17 has no event for it, so its handlers of a connection are extended.
 */
import type { Connection, Session } from 'ssh2';

interface Internals {
  _protocol?: {
    _handlers?: {
      CHANNEL_REQUEST?: (protocol: unknown, recipient: number, type: string, ...rest: unknown[]) => void;
    };
  };
}

/** @param listener gets the number of the channel, as `channelOf` does */
export function onEndOfWrite(client: Connection, listener: (channel: number) => void): void {
  const handlers = (client as Internals)._protocol?._handlers;
  const handle = handlers?.CHANNEL_REQUEST;
  if (handlers === undefined || handle === undefined) return;
  handlers.CHANNEL_REQUEST = (protocol, recipient, type, ...rest) => {
    if (type === 'eow@openssh.com') listener(recipient);
    handle(protocol, recipient, type, ...rest);
  };
}

export function channelOf(session: Session): number | undefined {
  return (session as { _chanInfo?: { incoming?: { id?: number } } })._chanInfo?.incoming?.id;
}
