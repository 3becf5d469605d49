import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parseDenials } from '../src/network/denial-rules.ts';

/** As `nft -j list set` prints the set of what was denied. */
function listing(...protocols: unknown[]): string {
  const elem = protocols.map((protocol) => ({
    elem: {
      val: { concat: ['100.64.0.4', '192.0.2.1', protocol, 443, 1] },
      expires: 3599,
      counter: { packets: 2, bytes: 120 },
    },
  }));
  return JSON.stringify({ nftables: [{ metainfo: {} }, { set: { name: 'denied', elem } }] });
}

test('denied protocols have their names, also on a machine without /etc/protocols', () => {
  const named = parseDenials(listing('tcp', 'udp', 'icmp', 253));
  const numbered = parseDenials(listing(6, 17, 1, 253));
  assert.deepEqual(numbered, named);
  assert.deepEqual(
    numbered.map(({ protocol, port }) => [protocol, port]),
    [
      ['tcp', 443],
      ['udp', 443],
      ['icmp', undefined],
      ['253', undefined],
    ],
  );
});
