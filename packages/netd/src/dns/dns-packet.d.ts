/** The part of dns-packet that we use (the package brings no types). */
declare module 'dns-packet' {
  export interface Question {
    name: string;
    /** Mnemonic such as `A`, or `UNKNOWN_65`. */
    type: string;
    class: string;
  }

  export interface Answer {
    name: string;
    type: string;
    class?: string;
    ttl?: number;
    data?: unknown;
  }

  export interface Packet {
    id?: number;
    type?: 'query' | 'response';
    flags?: number;
    flag_tc?: boolean;
    flag_rd?: boolean;
    opcode?: string;
    rcode?: string;
    questions?: Question[];
    answers?: Answer[];
    authorities?: Answer[];
    additionals?: (Answer | { name: string; type: 'OPT'; udpPayloadSize: number; flags?: number })[];
  }

  const dnsPacket: {
    encode(packet: Packet): Buffer;
    /** Throws on anything malformed. */
    decode(bytes: Buffer): Packet;
    RECURSION_DESIRED: number;
    RECURSION_AVAILABLE: number;
    TRUNCATED_RESPONSE: number;
  };
  export default dnsPacket;
}
