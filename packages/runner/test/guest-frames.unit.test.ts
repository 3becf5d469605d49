import assert from 'node:assert/strict';
import { test } from 'node:test';
import * as fc from 'fast-check';
import {
  FrameDecoder,
  FrameType,
  MAGIC,
  MAX_PAYLOAD_BYTES,
  encodeFrame,
  encodeHello,
  encodeMessage,
} from '../src/guest/frames.ts';
import { GuestError } from '../src/guest/guest-error.ts';

const nonce = 'a-nonce-of-ours';

function synced(): FrameDecoder {
  const decoder = new FrameDecoder(nonce);
  decoder.push(encodeHello(nonce));
  assert.equal(decoder.next()?.type, FrameType.hello);
  return decoder;
}

/** Feeds bytes in the given slices and collects what comes out. */
function decode(
  decoder: FrameDecoder,
  bytes: Buffer,
  cuts: number[],
): { type: number; stream: number; payload: string }[] {
  const frames: { type: number; stream: number; payload: string }[] = [];
  const edges = [0, ...cuts.map((cut) => cut % (bytes.length + 1)).sort((a, b) => a - b), bytes.length];
  for (let index = 1; index < edges.length; index += 1) {
    decoder.push(bytes.subarray(edges[index - 1], edges[index]));
    for (let frame = decoder.next(); frame !== undefined; frame = decoder.next()) {
      frames.push({ type: frame.type, stream: frame.stream, payload: frame.payload.toString('hex') });
    }
  }
  return frames;
}

const frame = fc.record({
  type: fc.integer({ min: FrameType.open, max: FrameType.event }),
  stream: fc.nat({ max: 2 ** 32 - 1 }),
  payload: fc.uint8Array({ maxLength: 300 }),
});

test('frames are decoded as they were sent, for every split of the bytes', () => {
  fc.assert(
    fc.property(fc.array(frame, { maxLength: 12 }), fc.array(fc.nat(), { maxLength: 30 }), (frames, cuts) => {
      const bytes = Buffer.concat(
        frames.map(({ type, stream, payload }) => encodeFrame(type, stream, payload)),
      );
      assert.deepEqual(
        decode(synced(), bytes, cuts),
        frames.map(({ type, stream, payload }) => ({
          type,
          stream,
          payload: Buffer.from(payload).toString('hex'),
        })),
      );
    }),
  );
});

test('bytes of an earlier connection before our HELLO are discarded', () => {
  const leftover = fc.oneof(
    fc.uint8Array({ maxLength: 200 }).map((bytes) => Buffer.from(bytes)),
    fc.nat({ max: 16 }).map((length) => MAGIC.subarray(0, length)),
    fc.constant(encodeHello('the nonce of another')),
    fc.constant(Buffer.concat([MAGIC, MAGIC])),
  );
  fc.assert(
    fc.property(
      fc.array(leftover, { maxLength: 6 }),
      fc.array(fc.nat(), { maxLength: 20 }),
      (noise, cuts) => {
        // Noise that ends in the beginning of a frame may swallow a HELLO once; the agent writes no such thing.
        fc.pre(!endsInsideHello(Buffer.concat(noise)));
        const ping = encodeFrame(FrameType.pong, 0, Buffer.from('x'));
        const frames = decode(
          new FrameDecoder(nonce),
          Buffer.concat([...noise, encodeHello(nonce), ping]),
          cuts,
        );
        assert.deepEqual(
          frames.map(({ type }) => type),
          [FrameType.hello, FrameType.pong],
        );
      },
    ),
  );
});

/** Whether the last magic is followed by less than a whole frame header and body. */
function endsInsideHello(bytes: Buffer): boolean {
  const at = bytes.lastIndexOf(MAGIC);
  return at >= 0 && bytes.length - at < MAGIC.length + 9;
}

test('random bytes from a guest give frames or one protocol error, and never more than a frame is held', () => {
  fc.assert(
    fc.property(fc.array(fc.uint8Array({ maxLength: 400 }), { maxLength: 30 }), (chunks) => {
      const decoder = synced();
      try {
        for (const chunk of chunks) {
          decoder.push(Buffer.from(chunk));
          for (let next = decoder.next(); next !== undefined; next = decoder.next()) {
            assert.ok(next.payload.length <= MAX_PAYLOAD_BYTES);
          }
        }
      } catch (error) {
        assert.ok(error instanceof GuestError);
        assert.equal(error.code, 'protocol');
      }
    }),
  );
});

test('a frame longer than allowed is refused by its header alone', () => {
  const decoder = synced();
  const header = Buffer.alloc(9);
  header.writeUInt32BE(MAX_PAYLOAD_BYTES + 1, 0);
  header.writeUInt8(FrameType.data, 4);
  decoder.push(header);
  assert.throws(() => decoder.next(), { code: 'protocol', message: /at most 65536/ });
});

test('a long message is cut into parts that join to the same text', () => {
  const body = { method: 'x', text: 'y'.repeat(200_000) };
  const frames = decode(synced(), encodeMessage(FrameType.open, 7, body), []);
  assert.deepEqual(
    frames.map(({ type }) => type),
    [FrameType.part, FrameType.part, FrameType.part, FrameType.open],
  );
  const text = Buffer.concat(frames.map(({ payload }) => Buffer.from(payload, 'hex'))).toString('utf8');
  assert.deepEqual(JSON.parse(text), body);
});

test('a message beyond 4 MiB is refused before anything is sent', () => {
  assert.throws(() => encodeMessage(FrameType.open, 1, { text: 'x'.repeat(5 * 1024 * 1024) }), {
    code: 'too_large',
  });
});
