"""Where pristine trees and stock wheels come from: the package index, a git remote, a folder."""
