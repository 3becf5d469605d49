/** All of a body. @param tooLong what is thrown when it has more than `most` bytes; the rest is not read then */
export async function readBounded(
  body: AsyncIterable<Uint8Array>,
  most: number,
  tooLong: () => Error,
): Promise<Buffer<ArrayBuffer>> {
  const chunks: Uint8Array[] = [];
  let bytes = 0;
  for await (const chunk of body) {
    bytes += chunk.length;
    if (bytes > most) throw tooLong();
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}
