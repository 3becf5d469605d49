/** Where a forwarder delivers. A service that listens on the guest's loopback alone is not reached. */
export interface PortTarget {
  address: string;
  port: number;
}
