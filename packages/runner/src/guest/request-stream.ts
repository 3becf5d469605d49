/** One request to a guest: collects its answer, and the data that flows with it. */
import { Channel, FrameType, MAX_MESSAGE_BYTES, decodeObject, encodeFrame } from './frames.ts';
import { GuestError, guestErrorCode } from './guest-error.ts';
import { type GuestStream, InboundChannel, OutboundChannel, type StreamSink } from './guest-stream.ts';
import { readText } from './replies.ts';

export class RequestStream implements GuestStream {
  readonly id: number;
  readonly result: Promise<Record<string, unknown>>;
  readonly stdin: OutboundChannel;
  readonly stdout: InboundChannel;
  readonly stderr: InboundChannel;
  readonly #sink: StreamSink;
  readonly #onEnd: () => void;
  readonly #answer = Promise.withResolvers<Record<string, unknown>>();
  #parts: Buffer[] = [];
  #partBytes = 0;
  #isOver = false;

  /** @param onEnd called once, when nothing that the guest sends on this stream matters any more */
  constructor(sink: StreamSink, id: number, onEnd: () => void) {
    this.id = id;
    this.#sink = sink;
    this.#onEnd = onEnd;
    this.result = this.#answer.promise;
    this.result.catch(() => undefined);
    this.stdin = new OutboundChannel(sink, id);
    this.stdout = new InboundChannel(sink, id, Channel.stdout);
    this.stderr = new InboundChannel(sink, id, Channel.stderr);
    // An error without a listener would end this process; who reads or writes sees it all the same.
    for (const channel of [this.stdin, this.stdout, this.stderr]) channel.on('error', () => undefined);
  }

  cancel(error: GuestError): void {
    if (this.#isOver) return;
    this.#sink.send(encodeFrame(FrameType.cancel, this.id));
    this.fail(error);
  }

  fail(error: GuestError): void {
    this.#end();
    this.#answer.reject(error);
    this.stdin.destroy(error);
    this.stdout.destroy(error);
    this.stderr.destroy(error);
  }

  /** Takes a frame of the guest. @throws GuestError `protocol` when it may not send that */
  accept(type: number, payload: Buffer): void {
    switch (type) {
      case FrameType.data:
        this.#output(payload).accept(payload.subarray(1));
        return;
      case FrameType.end:
        this.#output(payload).finish();
        return;
      case FrameType.window:
        if (payload.length !== 5 || payload[0] !== Channel.stdin)
          throw new GuestError('protocol', 'the guest sent a malformed WINDOW');
        this.stdin.grant(payload.readUInt32BE(1));
        return;
      case FrameType.part:
        this.#partBytes += payload.length;
        if (this.#partBytes > MAX_MESSAGE_BYTES)
          throw new GuestError(
            'protocol',
            `the guest sent an answer of more than ${MAX_MESSAGE_BYTES} bytes`,
          );
        this.#parts.push(Buffer.from(payload));
        return;
      case FrameType.result: {
        const whole = this.#parts.length === 0 ? payload : Buffer.concat([...this.#parts, payload]);
        this.#settle(decodeObject(whole));
        return;
      }
      case FrameType.error: {
        const body = decodeObject(payload);
        this.fail(
          new GuestError(
            guestErrorCode(body['code']),
            readText(body, 'message', 8_192, 'the guest gave no reason'),
          ),
        );
        return;
      }
      default:
        throw new GuestError('protocol', `the guest sent frame type ${type} on a request`);
    }
  }

  #settle(result: Record<string, unknown>): void {
    this.#end();
    this.stdin.shut();
    this.stdout.finish();
    this.stderr.finish();
    this.#answer.resolve(result);
  }

  #end(): void {
    this.#isOver = true;
    this.#onEnd();
  }

  #output(payload: Buffer): InboundChannel {
    if (payload[0] === Channel.stdout) return this.stdout;
    if (payload[0] === Channel.stderr) return this.stderr;
    throw new GuestError('protocol', 'the guest sent data on a channel that is not its own');
  }
}
