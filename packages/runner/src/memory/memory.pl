# What a script runtime cannot ask the kernel for by itself (run with Debian's essential perl).
#
#   memory.pl compact SOURCE TARGET   copies a file, leaving out pages that are zero
#   memory.pl copy SOURCE TARGET      copies what a sparse file holds, as a clone where the file system can
#   memory.pl hold BYTES              makes memory of that size, says "<descriptor>\n" and keeps it until standard input
#                                     ends; told "fill SOURCE\n", it puts what that file holds where there is nothing
#                                     yet, and says "filled\n"; told "seal\n", it makes sure that nobody can write to it
#                                     any more, and says "sealed\n"
use strict;
use warnings;
use POSIX ();

use constant { SEEK_DATA => 3, SEEK_HOLE => 4, PAGE => 4096, CHUNK => 1 << 20 };
use constant { F_ADD_SEALS => 1033, SEAL_ALL => 0x1 | 0x2 | 0x4 | 0x8 };
use constant { MFD_CLOEXEC => 1, MFD_ALLOW_SEALING => 2, FICLONE => 0x40049409 };
my %copy_file_range = ( x86_64 => 326, aarch64 => 285 );
my %memfd_create    = ( x86_64 => 319, aarch64 => 279 );
my $machine         = ( POSIX::uname() )[4];

my $mode = shift @ARGV;
if ( $mode eq 'hold' ) {
    my ($size) = @ARGV;
    my $number = $memfd_create{$machine} or die "memfd_create(2) has no known number on $machine\n";
    my $name   = "releap-memory";
    my $fd     = syscall( $number, $name, MFD_CLOEXEC | MFD_ALLOW_SEALING );
    die "memfd_create(2) failed: $!\n" if $fd < 0;
    open( my $out, '+<&=:raw', $fd ) or die "cannot use descriptor $fd: $!\n";
    truncate( $out, $size ) or die "cannot have $size bytes of memory: $!\n";
    $| = 1;
    print fileno($out), "\n";
    while ( my $line = <STDIN> ) {
        if ( $line =~ /^fill (.+)$/ ) {
            each_extent( open_source($1), sub { fill_extent( @_, $out ) } );
            print "filled\n";
        }
        elsif ( $line eq "seal\n" ) {
            fcntl( $out, F_ADD_SEALS, SEAL_ALL ) or die "cannot seal the memory: $!\n";
            print "sealed\n";
        }
    }
    exit 0;
}

my ( $source, $target ) = @ARGV;
my $in = open_source($source);
umask 077;
open( my $out, '+>:raw', $target ) or die "cannot write $target: $!\n";
exit 0 if $mode eq 'copy' && ioctl( $out, FICLONE, fileno($in) );
truncate( $out, -s $in ) or die "cannot make $target that large: $!\n";
each_extent( $in, sub { $mode eq 'copy' ? clone_extent( @_, $out ) : compact_extent( @_, $out ) } );

sub open_source {
    my ($path) = @_;
    open( my $file, '<:raw', $path ) or die "cannot read $path: $!\n";
    return $file;
}

# Calls with the file and the bounds of each of its parts that are no holes.
sub each_extent {
    my ( $in, $work ) = @_;
    my $end = 0;
    while ( defined( my $start = sysseek( $in, $end, SEEK_DATA ) ) ) {
        $end = sysseek( $in, $start, SEEK_HOLE );
        $work->( $in, $start + 0, $end );
    }
}

sub clone_extent {
    my ( $in, $start, $end, $out ) = @_;
    my $number = $copy_file_range{$machine};
    my ( $from, $to ) = ( fileno($in), fileno($out) );
    while ( defined $number && $start < $end ) {
        my ( $in_at, $out_at ) = ( pack( 'q', $start ), pack( 'q', $start ) );
        my $copied = syscall( $number, $from, $in_at, $to, $out_at, $end - $start, 0 );
        last if $copied <= 0;
        $start += $copied;
    }
    copy_extent( $in, $start, $end, $out );
}

# What is there stays.
sub fill_extent {
    my ( $in, $start, $end, $out ) = @_;
    while ( $start < $end ) {
        my $hole = sysseek( $out, $start, SEEK_HOLE );
        return if $hole >= $end;
        my $data = sysseek( $out, $hole, SEEK_DATA );
        $data = $end if !defined $data || $data > $end;
        copy_extent( $in, $hole + 0, $data, $out );
        $start = $data;
    }
}

sub copy_extent {
    my ( $in, $start, $end, $out ) = @_;
    sysseek( $in,  $start, 0 );
    sysseek( $out, $start, 0 );
    while ( $start < $end ) {
        my $chunk = read_chunk( $in, $end - $start );
        put( $out, $chunk );
        $start += length $chunk;
    }
}

sub compact_extent {
    my ( $in, $start, $end, $out ) = @_;
    my $zero = "\0" x PAGE;
    sysseek( $in, $start, 0 );
    while ( $start < $end ) {
        my $chunk = read_chunk( $in, $end - $start );
        for ( my $page = 0 ; $page < length $chunk ; $page += PAGE ) {
            my $bytes = substr( $chunk, $page, PAGE );
            next if $bytes eq $zero;
            sysseek( $out, $start + $page, 0 );
            put( $out, $bytes );
        }
        $start += length $chunk;
    }
}

sub read_chunk {
    my ( $in, $left ) = @_;
    sysread( $in, my $chunk, $left < CHUNK ? $left : CHUNK ) or die 'cannot read: ' . ( $! || 'it ended early' ) . "\n";
    return $chunk;
}

sub put {
    my ( $out, $bytes ) = @_;
    my $put = 0;
    while ( $put < length $bytes ) {
        my $count = syswrite( $out, $bytes, length($bytes) - $put, $put );
        defined $count or die "cannot write: $!\n";
        $put += $count;
    }
}
